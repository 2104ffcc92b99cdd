package netfault

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	soon  = 30 * time.Second      // for what must happen
	quiet = 50 * time.Millisecond // for what must not
)

// echoServer sends back what it is sent.
func echoServer(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().String()
}

// newClient connects to addr.
func newClient(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(4*soon)))
	return c
}

func newEcho(t *testing.T) (*Proxy, net.Conn) {
	p := proxyTo(t, echoServer(t))
	return p, newClient(t, p.Addr())
}

func proxyTo(t *testing.T, target string) *Proxy {
	p, err := NewProxy(target)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func send(t *testing.T, c net.Conn, text string) {
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
}

func receive(t *testing.T, c net.Conn, n int) string {
	buf := make([]byte, n)
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	return string(buf)
}

// receivesNothing waits a moment in which nothing may come.
func receivesNothing(t *testing.T, c net.Conn) {
	require.NoError(t, c.SetReadDeadline(time.Now().Add(quiet)))
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(4*soon)))
}

// isReset waits until the connection is broken.
func isReset(t *testing.T, c net.Conn) {
	_, err := io.Copy(io.Discard, c)
	require.ErrorContains(t, err, "connection reset")
}

func TestProxyPasses(t *testing.T) {
	t.Parallel()
	p, c := newEcho(t)
	send(t, c, "hello")
	require.Equal(t, "hello", receive(t, c, 5))
	require.EqualValues(t, 5, p.Bytes(ToServer))
	require.EqualValues(t, 5, p.Bytes(ToClient))
	require.Equal(t, 1, p.Accepted())
	require.Equal(t, 1, p.Open())
}

func TestProxyPassesMuch(t *testing.T) {
	t.Parallel()
	_, c := newEcho(t)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = c.Write(want) })
	require.Equal(t, string(want), receive(t, c, len(want)))
	writing.Wait()
}

func TestProxyPassesTheEndOfOneDirection(t *testing.T) {
	t.Parallel()
	p, c := newEcho(t)
	send(t, c, "last words")
	require.NoError(t, c.(*net.TCPConn).CloseWrite())
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "last words", string(all))
	require.Eventually(t, func() bool { return p.Open() == 0 }, soon, time.Millisecond)
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	p, c := newEcho(t)
	send(t, c, "hello")
	receive(t, c, 5)
	p.Cut()
	isReset(t, c) // without a byte on its way
	p.neverAnswers(t)
	p.Pass()
	c = newClient(t, p.Addr())
	send(t, c, "again")
	require.Equal(t, "again", receive(t, c, 5))
}

func TestProxyCutsAfterBytes(t *testing.T) {
	t.Parallel()
	p, c := newEcho(t)
	p.CutAfter(3, ToClient)
	send(t, c, "hello")
	require.Equal(t, "hel", receive(t, c, 3))
	isReset(t, c)
	require.EqualValues(t, 5, p.Bytes(ToServer), "the request had arrived")
}

func TestProxyHoldsOneDirection(t *testing.T) {
	t.Parallel()
	for _, dir := range []Direction{ToServer, ToClient} {
		t.Run(dir.String(), func(t *testing.T) {
			t.Parallel()
			p, c := newEcho(t)
			p.Blackhole(dir)
			send(t, c, "hello")
			receivesNothing(t, c)
			if dir == ToClient {
				require.Eventually(t, func() bool { return p.Bytes(ToServer) == 5 }, soon, time.Millisecond)
			} else {
				require.Zero(t, p.Bytes(ToServer))
			}
			late := newClient(t, p.Addr()) // is accepted, and hears nothing
			send(t, late, "late")
			receivesNothing(t, late)
			p.Pass()
			require.Equal(t, "hello", receive(t, c, 5), "nothing is lost")
			require.Equal(t, "late", receive(t, late, 4))
		})
	}
}

func TestProxyIsCutWhileItHolds(t *testing.T) {
	t.Parallel()
	p, c := newEcho(t)
	p.Blackhole()
	send(t, c, "hello")
	receivesNothing(t, c)
	p.Cut()
	isReset(t, c)
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	const delay = 2 * time.Second
	p, c := newEcho(t)
	p.Delay(delay, ToServer)
	began := time.Now()
	send(t, c, "a")
	require.Equal(t, "a", receive(t, c, 1))
	require.GreaterOrEqual(t, time.Since(began), delay)

	// Bytes sent during the delay are late by as much, not by the sum.
	began = time.Now()
	for range 10 {
		send(t, c, "b")
		pause(5 * time.Millisecond)
	}
	receive(t, c, 10)
	require.Less(t, time.Since(began), 9*delay)
}

// pause spaces out writes, so that they are read one by one.
func pause(d time.Duration) { <-time.After(d) }

func TestProxyDropsAfterBytes(t *testing.T) {
	t.Parallel()
	p, c := newEcho(t)
	p.DropAfter(3, ToServer)
	send(t, c, "hello")
	require.Equal(t, "hel", receive(t, c, 3))
	receivesNothing(t, c)
	send(t, c, "more")
	receivesNothing(t, c)
	p.Pass()
	isReset(t, c) // a stream with a hole is of no use
	c = newClient(t, p.Addr())
	send(t, c, "whole")
	require.Equal(t, "whole", receive(t, c, 5))
}

func TestProxyWithoutServer(t *testing.T) {
	t.Parallel()
	p := proxyTo(t, "127.0.0.1:1")
	p.neverAnswers(t)
}

// neverAnswers is true of a proxy that resets new connections: the client sees it at its first read, or already when
// it connects.
func (p *Proxy) neverAnswers(t *testing.T) {
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer func() { _ = c.Close() }()
		_, err = io.Copy(io.Discard, c)
	}
	require.ErrorContains(t, err, "connection reset")
}

func TestProxyEndsWithOpenConnections(t *testing.T) {
	t.Parallel()
	p, c := newEcho(t)
	send(t, c, "hello")
	receive(t, c, 5)
	p.Blackhole()
	send(t, c, "held")
	p.Close() // returns: no goroutine waits for what never comes
	isReset(t, c)
	require.Zero(t, p.Open())
}

// Faults change while connections come and go.
func TestProxyUnderChange(t *testing.T) {
	t.Parallel()
	p := proxyTo(t, echoServer(t))
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 50 {
				c, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
				_, _ = c.Write([]byte("hello"))
				_, _ = io.ReadFull(c, make([]byte, 5))
				_ = c.Close()
			}
		})
	}
	faults := []Fault{{Kind: Cut}, {}, {Kind: Hold, After: 12}, {Delay: time.Millisecond}, {Kind: Drop, After: 3}, {}}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				p.Set(faults[i%len(faults)], Direction(i%int(directions)))
			}
		}
	})
	clients.Wait()
	close(stop)
	changing.Wait()
	p.Pass()
	c := newClient(t, p.Addr())
	send(t, c, "hello")
	require.Equal(t, "hello", receive(t, c, 5))
}

// passes ends the faults of a gate with what is written to it.
type passes struct {
	net.Conn
	gate *gate
	got  []byte
}

func (p *passes) Write(b []byte) (int, error) {
	p.got = append(p.got, b...)
	p.gate.set(Fault{})
	return len(b), nil
}

// What is read at once is judged at once: a fault that ends in the middle of it takes its part all the same.
func TestFaultThatEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	client, _ := net.Pipe()
	l, to := newLink(client), &passes{gate: newGate()}
	to.gate.set(Fault{Kind: Drop, After: 3})
	require.True(t, l.carry(chunk{[]byte("hello"), time.Now()}, to, to.gate))
	require.Equal(t, "hel", string(to.got))
	<-l.finished() // a stream with a hole is of no use
	l.side.Wait()
}
