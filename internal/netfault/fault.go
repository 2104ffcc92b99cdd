package netfault

import (
	"sync"
	"time"
)

// Direction is one of the two ways through a Proxy.
type Direction int

// The directions.
const (
	ToServer Direction = iota // requests
	ToClient                  // answers
	directions
)

// String names the direction.
func (d Direction) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// Kind is what a Fault does.
type Kind int

// The kinds of faults.
const (
	// Pass lets bytes through, late when the fault has a Delay.
	Pass Kind = iota
	// Hold lets nothing through and loses nothing, like a network that is cut while both ends send again and again:
	// what was held arrives when the fault ends. Connections stay open, and new ones are accepted.
	Hold
	// Drop throws bytes away. A connection that lost some cannot go on: it is cut when the fault ends.
	Drop
	// Cut resets the connections, and new ones as soon as they are there.
	Cut
)

// Fault is what happens to the bytes of one direction.
type Fault struct {
	Kind Kind
	// Delay is added to every byte that passes. Throughput stays as it is.
	Delay time.Duration
	// After lets this many bytes pass first, counted over all connections from the moment the fault is set.
	After int64
}

// gate decides for one direction of all connections of a proxy.
type gate struct {
	mu      sync.Mutex
	fault   Fault
	quota   int64         // bytes that may pass before the fault begins
	changed chan struct{} // closed when the fault is replaced
	passed  int64         // bytes let through, ever
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

func (g *gate) set(f Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault, g.quota = f, f.After
	close(g.changed)
	g.changed = make(chan struct{})
}

// verdict is what the gate says to n bytes.
type verdict struct {
	pass    int  // how many of them pass
	kind    Kind // what happens to the others
	delay   time.Duration
	changed <-chan struct{} // closed when there is another fault
}

func (g *gate) ask(n int) verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := verdict{pass: n, kind: g.fault.Kind, delay: g.fault.Delay, changed: g.changed}
	if v.kind != Pass {
		v.pass = int(min(int64(n), g.quota))
		g.quota -= int64(v.pass)
	}
	g.passed += int64(v.pass)
	return v
}

// cuts tells whether connections are to be reset now.
func (g *gate) cuts() (now bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault.Kind == Cut && g.quota <= 0, g.changed
}

func (g *gate) bytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.passed
}
