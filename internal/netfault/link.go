package netfault

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is one connection through a proxy.
type link struct {
	client net.Conn
	server net.Conn
	ctx    context.Context // ends with the link
	cancel context.CancelFunc

	spoilt sync.Once
	side   sync.WaitGroup

	mu    sync.Mutex
	ended int // directions that have been carried to their end
}

func newLink(client net.Conn) *link {
	ctx, cancel := context.WithCancel(context.Background())
	return &link{client: client, ctx: ctx, cancel: cancel}
}

func (l *link) finished() <-chan struct{} { return l.ctx.Done() }

// dial connects to the server. A link that is reset meanwhile gives up at once.
func (l *link) dial(target string) bool {
	d := net.Dialer{Timeout: dialTimeout}
	server, err := d.DialContext(l.ctx, "tcp", target)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		abort(server)
		return false
	}
	l.server = server
	return true
}

// reset ends the link at once; both ends see a reset connection.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	l.cancel()
	abort(l.client)
	if l.server != nil {
		abort(l.server)
	}
}

// abort closes a connection with a reset, as one that breaks does.
func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// end notes that one direction was carried to its end; after the second the link is closed in the ordinary way.
func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended++
	if l.ended == int(directions) && l.ctx.Err() == nil {
		l.cancel()
		_ = l.client.Close()
		_ = l.server.Close()
	}
}

// watch resets the link when the gate says so, also when no bytes come by.
func (l *link) watch(g *gate) {
	for {
		now, changed := g.cuts()
		if now {
			l.reset()
			return
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return
		}
	}
}

// chunk is what was read at once.
type chunk struct {
	data []byte
	at   time.Time
}

// queued is the number of chunks on their way: what a delay holds, and what a blackhole takes in before the sender
// feels it.
const queued = 64

// source reads the next piece of a stream. With the last it may return io.EOF.
type source func(io.Reader) ([]byte, error)

// plain reads whatever there is.
func plain(r io.Reader) ([]byte, error) {
	buf := make([]byte, 32<<10)
	n, err := r.Read(buf)
	return buf[:n], err
}

func plainSources() [directions]source { return [directions]source{plain, plain} }

// pump carries bytes from one end to the other through the gate. Reading and writing are apart, so that a delay makes
// bytes late and not few.
func (l *link) pump(from, to net.Conn, g *gate, next source) {
	way := make(chan chunk, queued)
	var reading sync.WaitGroup
	reading.Go(func() { l.read(from, next, way) })
	for c := range way {
		if !l.carry(c, to, g) {
			l.reset() // the reader ends and closes the way
		}
	}
	reading.Wait()
	if half, ok := to.(*net.TCPConn); ok && l.ctx.Err() == nil {
		_ = half.CloseWrite()
	}
	l.end()
}

// read sends what comes from one end on its way.
func (l *link) read(from net.Conn, next source, way chan<- chunk) {
	defer close(way)
	for {
		data, err := next(from)
		if len(data) > 0 {
			select {
			case way <- chunk{data, time.Now()}:
			case <-l.ctx.Done():
				return
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			l.reset()
			return
		}
	}
}

// carry brings one chunk through the gate; false ends the link.
func (l *link) carry(c chunk, to net.Conn, g *gate) bool {
	for len(c.data) > 0 {
		v := g.ask(len(c.data))
		if v.pass > 0 {
			if !l.sleep(time.Until(c.at.Add(v.delay))) {
				return false
			}
			if _, err := to.Write(c.data[:v.pass]); err != nil {
				return false
			}
			c.data = c.data[v.pass:]
		}
		if len(c.data) == 0 {
			break
		}
		// The rest is this fault's too, also when it has ended meanwhile.
		switch v.kind {
		case Cut:
			return false
		case Drop:
			c.data = nil
			l.resetAfter(v.changed)
		default: // Hold
			select {
			case <-v.changed:
			case <-l.ctx.Done():
				return false
			}
		}
	}
	return true
}

// resetAfter ends a link that has lost bytes when the fault that took them ends.
func (l *link) resetAfter(changed <-chan struct{}) {
	l.spoilt.Do(func() {
		l.side.Go(func() {
			select {
			case <-changed:
				l.reset()
			case <-l.ctx.Done():
			}
		})
	})
}

// sleep waits; false when the link ended first.
func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return l.ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}
