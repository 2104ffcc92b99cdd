package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Broker is a RocketMQ name server and broker in this process. Its methods may
// be called from any goroutine.
type Broker struct {
	cfg      Config
	log      *zap.Logger
	metrics  *metrics
	store    *store
	listener net.Listener

	advertise string
	storeHost netip.AddrPort
	maxFrame  int

	groups  *groups
	halves  *halves
	offsets *offsets
	parked  *parked
	locks   *queueLocks

	hashSeed  atomic.Uint32 // round robin of sends without a queue
	delayWake wakeup
	checkWake wakeup

	mu    sync.Mutex
	state state
	conns map[*conn]struct{}

	stopping atomic.Bool
	stop     chan struct{}  // closed when Stop begins
	stopped  chan struct{}  // closed when Stop is through
	stopErr  error          // read after stopped
	wg       sync.WaitGroup // loops and delayed actions
	connWG   sync.WaitGroup
}

type state int

const (
	stateOpen state = iota
	stateStarted
	stateStopped
)

// Open opens the storage, then binds the listener. Nothing is served before
// Start; connections made meanwhile wait. It fails with ErrStorageInUse when
// another broker has the folder, an error that wraps syscall.EADDRINUSE when
// the port is taken, and the file system's error when the folder cannot be
// written. A Broker that was opened must be stopped.
func Open(cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	b, err := open(cfg, m)
	if err != nil {
		m.unregister()
		return nil, err
	}
	return b, nil
}

func open(cfg Config, m *metrics) (*Broker, error) {
	s, err := openStore(cfg, m)
	if err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, log: cfg.Logger, metrics: m, store: s,
		maxFrame: max(16<<20, cfg.MaxMessageSize+maxHeaderSize+(64<<10)),
		groups:   newGroups(), halves: newHalves(m), offsets: newOffsets(), parked: newParked(m), locks: newQueueLocks(),
		conns: make(map[*conn]struct{}), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	s.appended = b.parked.arrived
	err = errors.Join(b.loadHalves(), b.loadOffsets())
	if err == nil {
		b.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", cfg.Listen)
		if err != nil {
			err = fmt.Errorf("broker: listen on %s: %w", cfg.Listen, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	b.setAdvertise()
	return b, nil
}

// setAdvertise picks what routes name, and the IPv4 address that message ids carry.
func (b *Broker) setAdvertise() {
	bound := b.listener.Addr().(*net.TCPAddr).AddrPort()
	host := bound.Addr().Unmap()
	if host.IsUnspecified() {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	b.advertise = b.cfg.Advertise
	if b.advertise == "" {
		b.advertise = netip.AddrPortFrom(host, bound.Port()).String()
	}
	b.storeHost = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), bound.Port())
	name, port, _ := net.SplitHostPort(b.advertise) // validated
	if n, err := strconv.Atoi(port); err == nil {
		b.storeHost = netip.AddrPortFrom(b.storeHost.Addr(), uint16(n))
	}
	if ip, err := netip.ParseAddr(name); err == nil && ip.Unmap().Is4() {
		b.storeHost = netip.AddrPortFrom(ip.Unmap(), b.storeHost.Port())
	}
}

// Addr is the host:port that clients of this machine use, as name server and
// as broker. The port is the one bound when Config.Listen had port 0.
func (b *Broker) Addr() string {
	addr := b.listener.Addr().(*net.TCPAddr).AddrPort()
	if addr.Addr().IsUnspecified() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port()).String()
	}
	return addr.String()
}

// Config returns the configuration in use, defaults filled in.
func (b *Broker) Config() Config { return b.cfg }

// Start serves in the background until Stop.
func (b *Broker) Start() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case stateStarted:
		return ErrStarted
	case stateStopped:
		return ErrStopped
	}
	b.state = stateStarted
	b.store.start()
	for _, loop := range []func(){b.acceptLoop, b.pullLoop, b.delayLoop, b.checkLoop, b.offsetLoop, b.retentionLoop} {
		b.wg.Go(loop)
	}
	b.log.Info("broker started", zap.String("addr", b.Addr()), zap.String("advertise", b.advertise), zap.String("dir", b.cfg.Dir))
	return nil
}

// Stop stops accepting, answers the pulls that wait, finishes the writes in
// hand, sends their answers, and closes the storage. When ctx ends first, the
// connections are closed without sending the rest; what was acknowledged is
// durable in any case. Stop returns when every goroutine has ended. It is
// idempotent and legal before Start.
func (b *Broker) Stop(ctx context.Context) error {
	b.mu.Lock()
	before := b.state
	b.state = stateStopped
	b.mu.Unlock()
	if before == stateStopped {
		<-b.stopped
		return b.stopErr
	}
	defer close(b.stopped)
	defer b.metrics.unregister()
	b.stopping.Store(true)
	close(b.stop)
	lerr := b.listener.Close()
	if before == stateOpen {
		b.stopErr = errors.Join(lerr, b.store.db.Close())
		return b.stopErr
	}
	b.wg.Wait() // loops; the last act of pullLoop is to answer what waits
	conns := b.connections()
	for _, c := range conns {
		c.endReading()
	}
	for _, c := range conns {
		<-c.readDone
	}
	ferr := b.flushOffsets()
	cerr := b.store.close() // runs what is queued and its answers
	b.drain(ctx, conns)
	for _, c := range conns {
		c.close()
	}
	b.connWG.Wait()
	b.stopErr = errors.Join(lerr, ferr, cerr)
	b.log.Info("broker stopped", zap.String("dir", b.cfg.Dir), zap.Error(b.stopErr))
	return b.stopErr
}

// drain waits until every answer was handed to the kernel, at most a second:
// a client that does not read must not hold Stop up.
func (b *Broker) drain(ctx context.Context, conns []*conn) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, c := range conns {
		for !c.flushed() && !c.closed.Load() {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

func (b *Broker) connections() []*conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]*conn, 0, len(b.conns))
	for c := range b.conns {
		all = append(all, c)
	}
	return all
}

func (b *Broker) acceptLoop() {
	for {
		nc, err := b.listener.Accept()
		switch {
		case b.stopping.Load():
			if err == nil {
				_ = nc.Close()
			}
			return
		case err != nil:
			// Out of file descriptors, most likely: others may close some.
			b.log.Error("accept", zap.Error(err))
			if !b.sleep(100 * time.Millisecond) {
				return
			}
		default:
			b.serve(newConn(b, nc))
		}
	}
}

func (b *Broker) serve(c *conn) {
	b.mu.Lock()
	b.conns[c] = struct{}{}
	b.mu.Unlock()
	b.metrics.connections.Inc()
	b.connWG.Go(func() {
		c.readLoop()
		<-c.done
		b.mu.Lock()
		delete(b.conns, c)
		b.mu.Unlock()
		b.metrics.connections.Dec()
		b.forget(c)
	})
	b.connWG.Go(c.writeLoop)
}
