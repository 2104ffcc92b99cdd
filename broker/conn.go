package broker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	idleTimeout  = 3 * time.Minute // clients send a heartbeat every 30 s
	writeTimeout = 10 * time.Second
	// stopGrace: a client waits up to 30 s for the answer of a request that was
	// on its way when the connection closed. Reading on for a moment answers it.
	stopGrace = 50 * time.Millisecond
	// maxQueuedBytes is what one client may leave unread before it is
	// disconnected; the frame that crosses it is still taken.
	maxQueuedBytes = 64 << 20
)

// conn is one client connection: one goroutine reads and dispatches, one
// writes. Requests in flight cost no goroutine.
type conn struct {
	b      *Broker
	net    net.Conn
	remote string
	host   netip.AddrPort

	closed atomic.Bool
	// early: it pulled or asked for its group before its first heartbeat, as
	// clients do that connect anew.
	early atomic.Bool
	done  chan struct{} // closed with the connection
	// readDone is closed when no more requests come from it.
	readDone chan struct{}
	wake     wakeup
	mu       sync.Mutex
	queue    net.Buffers
	queued   int
	busy     bool // the writer has taken frames it has not finished writing
}

func newConn(b *Broker, nc net.Conn) *conn {
	c := &conn{b: b, net: nc, remote: nc.RemoteAddr().String(), done: make(chan struct{}), readDone: make(chan struct{})}
	if ap, err := netip.ParseAddrPort(c.remote); err == nil {
		c.host = netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
	} else {
		c.host = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
	}
	return c
}

// close is idempotent and may be called from anywhere.
func (c *conn) close() {
	if c.closed.CompareAndSwap(false, true) {
		close(c.done)
		_ = c.net.Close() // nothing to do about it: the peer sees the end either way
	}
}

// fail closes the connection for something the client did, with one log line.
func (c *conn) fail(reason string, err error) {
	if !c.closed.Load() {
		c.b.log.Warn("closing client connection", zap.String("remote", c.remote), zap.String("reason", reason), zap.Error(err))
	}
	c.close()
}

// endReading gives requests that are on their way stopGrace to arrive.
func (c *conn) endReading() { _ = c.net.SetReadDeadline(time.Now().Add(stopGrace)) }

// readLoop runs until the connection ends or the broker stops.
func (c *conn) readLoop() {
	defer func() {
		close(c.readDone)
		if !c.b.stopping.Load() {
			c.close()
		} // else Stop does, when what is queued was sent
	}()
	in := bufio.NewReaderSize(c.net, 32<<10)
	for {
		if !c.b.stopping.Load() {
			_ = c.net.SetReadDeadline(time.Now().Add(idleTimeout))
			if c.b.stopping.Load() {
				c.endReading() // Stop's own call may have come before the line above
			}
		}
		frame, err := readFrame(in, c.b.maxFrame)
		if err != nil {
			c.readFailed(err)
			return
		}
		cmd, err := decodeCommand(frame)
		if err != nil {
			c.b.metrics.badFrames.Inc()
			c.fail("malformed frame", err)
			return
		}
		c.b.dispatch(c, cmd)
	}
}

func (c *conn) readFailed(err error) {
	var timeout net.Error
	switch {
	case errors.Is(err, errBadFrame), errors.Is(err, errFrameTooLarge):
		c.b.metrics.badFrames.Inc()
		c.fail("malformed frame", err)
	case c.closed.Load(), c.b.stopping.Load(), errors.Is(err, io.EOF):
	case errors.As(err, &timeout) && timeout.Timeout():
		c.b.log.Debug("client connection idle", zap.String("remote", c.remote))
	default:
		c.b.log.Debug("client connection lost", zap.String("remote", c.remote), zap.Error(err))
	}
}

// send queues a command. It never blocks.
func (c *conn) send(cmd *command) {
	if c.closed.Load() {
		return
	}
	frame, err := encodeCommand(cmd)
	if err != nil {
		c.fail("answer cannot be encoded", err)
		return
	}
	c.mu.Lock()
	full := c.queued > maxQueuedBytes
	if !full {
		c.queue = append(c.queue, frame)
		c.queued += len(frame)
	}
	c.mu.Unlock()
	if full {
		c.fail("client does not read", fmt.Errorf("more than %d bytes are waiting for it", maxQueuedBytes))
		return
	}
	c.wake.poke()
}

// slow tells that the client has much left to read.
func (c *conn) slow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queued > maxQueuedBytes/4
}

// flushed tells that everything queued was handed to the kernel.
func (c *conn) flushed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) == 0 && !c.busy
}

func (c *conn) writeLoop() {
	for {
		select {
		case <-c.done:
			return
		case <-c.wake.c():
		}
		for {
			c.mu.Lock()
			frames, size := c.queue, c.queued
			c.queue, c.busy = nil, len(frames) > 0
			c.mu.Unlock()
			if len(frames) == 0 {
				break
			}
			_ = c.net.SetWriteDeadline(time.Now().Add(writeTimeout))
			_, err := frames.WriteTo(c.net)
			c.mu.Lock()
			c.queued -= size
			c.busy = false
			c.mu.Unlock()
			if err != nil {
				c.writeFailed(err)
				return
			}
		}
	}
}

func (c *conn) writeFailed(err error) {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.fail("client does not read", err)
		return
	}
	c.close()
}
