package netfault

import (
	"net"
	"sync"
	"time"
)

// Proxy is a TCP proxy on a loopback port that makes faults on the wire. It passes everything at first. Its methods may
// be called at any time from any goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	gates    [directions]*gate
	sources  func() [directions]source // made for each connection
	running  sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]struct{}
	closed bool
	served int
}

// NewProxy starts a proxy in front of the server at target (host:port). The server need not run yet. Close ends it.
func NewProxy(target string) (*Proxy, error) { return newProxy(target, plainSources) }

func newProxy(target string, sources func() [directions]source) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, sources: sources, links: map[*link]struct{}{}}
	for d := range p.gates {
		p.gates[d] = newGate()
	}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where clients connect, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Target is the server's address.
func (p *Proxy) Target() string { return p.target }

// Set replaces the fault of the given directions, or of both when none is given.
func (p *Proxy) Set(f Fault, dirs ...Direction) {
	if len(dirs) == 0 {
		dirs = []Direction{ToServer, ToClient}
	}
	for _, d := range dirs {
		p.gates[d].set(f)
	}
}

// Pass ends the faults.
func (p *Proxy) Pass(dirs ...Direction) { p.Set(Fault{}, dirs...) }

// Cut resets all connections, and new ones as soon as they are there.
func (p *Proxy) Cut() { p.Set(Fault{Kind: Cut}) }

// Blackhole lets nothing through and keeps connections open, see Hold.
func (p *Proxy) Blackhole(dirs ...Direction) { p.Set(Fault{Kind: Hold}, dirs...) }

// Delay makes every byte late.
func (p *Proxy) Delay(d time.Duration, dirs ...Direction) { p.Set(Fault{Delay: d}, dirs...) }

// DropAfter lets n more bytes pass and throws the following ones away, see Drop.
func (p *Proxy) DropAfter(n int64, dirs ...Direction) { p.Set(Fault{Kind: Drop, After: n}, dirs...) }

// CutAfter lets n more bytes pass and resets the connection at the next one.
func (p *Proxy) CutAfter(n int64, dirs ...Direction) { p.Set(Fault{Kind: Cut, After: n}, dirs...) }

// Bytes counts what has passed in one direction.
func (p *Proxy) Bytes(d Direction) int64 { return p.gates[d].bytes() }

// Accepted counts the connections that clients have made.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served
}

// Open counts the connections that are open.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Close ends the proxy and its connections, and waits until all its goroutines are gone.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.reset()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		l := newLink(client)
		p.mu.Lock()
		p.served++
		if p.closed {
			p.mu.Unlock()
			l.reset()
			return
		}
		p.links[l] = struct{}{}
		p.mu.Unlock()
		p.running.Go(func() {
			p.serve(l)
			p.mu.Lock()
			delete(p.links, l)
			p.mu.Unlock()
		})
	}
}

// dialTimeout bounds the connect to the server, which is on this machine or near it.
const dialTimeout = 10 * time.Second

// serve carries one connection until it ends.
func (p *Proxy) serve(l *link) {
	var pumps sync.WaitGroup
	defer l.side.Wait()
	defer pumps.Wait()
	defer l.reset() // runs first
	for _, g := range p.gates {
		pumps.Go(func() { l.watch(g) })
	}
	if !l.dial(p.target) {
		return
	}
	next := p.sources()
	pumps.Go(func() { l.pump(l.client, l.server, p.gates[ToServer], next[ToServer]) })
	pumps.Go(func() { l.pump(l.server, l.client, p.gates[ToClient], next[ToClient]) })
	<-l.finished()
}
