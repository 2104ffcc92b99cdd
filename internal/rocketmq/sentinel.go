package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/halfbox/halfbox/internal/remoting"
)

// The times of a sentinel.
const (
	routeEvery     = 30 * time.Second // as the client asks for it
	routeEveryAway = time.Second      // while a broker is away, or none is known
	awayRetry      = 200 * time.Millisecond
	awayTimeout    = 2 * time.Second
	// keepAlive is well below the 120 s after which a broker closes a connection on which nothing happens.
	keepAlive = 20 * time.Second
	// aliveTimeout is longer than the client waits for a parked pull: a broker that is frozen for less goes on by itself.
	aliveTimeout = 30 * time.Second
	// forgetAfter is how long a broker that left the topic's route is waited for.
	forgetAfter = 10 * time.Minute
)

// sentinel watches the brokers of a topic, which the client does not: a pull that is parked at a broker that dies is
// given up after 30 s, whatever happened to its connection. The sentinel has one connection to each master on which
// nothing happens but a question now and then, so it sees an end at once.
type sentinel struct {
	directory
	// returned gets a value when a broker that was away is back; it holds one.
	returned chan struct{}

	mu      sync.Mutex
	brokers map[string]*watched // by address
}

// watched is what is known of one broker.
type watched struct {
	stop   context.CancelFunc // ends its watch
	away   error              // why it cannot be reached; nil when it can
	since  time.Time          // when that began
	routed time.Time          // when the route last had it
}

func newSentinel(nameServers []string, topic string, creds Credentials) *sentinel {
	return &sentinel{directory: newDirectory(nameServers, topic, creds), returned: make(chan struct{}, 1), brokers: map[string]*watched{}}
}

// run watches until ctx ends.
func (s *sentinel) run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	for {
		if masters, err := s.masters(ctx); err == nil { // without a name server everything goes on as it is
			for _, addr := range s.newcomers(masters) {
				one, stop := context.WithCancel(ctx)
				s.add(addr, stop)
				watching.Go(func() { s.watch(one, addr) })
			}
			s.forget()
		}
		if !sleep(ctx, s.untilNextRoute()) {
			return
		}
	}
}

// newcomers notes that the route has some brokers, and returns those not watched yet. One that comes while another
// is away may be that one at a new address.
func (s *sentinel) newcomers(masters []string) (unknown []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, addr := range masters {
		if w, ok := s.brokers[addr]; ok {
			w.routed = time.Now()
			continue
		}
		unknown = append(unknown, addr)
	}
	if len(unknown) > 0 && s.anyAway() {
		s.signal()
	}
	return unknown
}

func (s *sentinel) add(addr string, stop context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.brokers[addr] = &watched{stop: stop, routed: time.Now()}
}

// forget drops the brokers that are away and have left the route for good.
func (s *sentinel) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, w := range s.brokers {
		if w.away != nil && time.Since(w.routed) > forgetAfter {
			w.stop()
			delete(s.brokers, addr)
		}
	}
}

func (s *sentinel) untilNextRoute() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.brokers) == 0 || s.anyAway() {
		return routeEveryAway
	}
	return routeEvery
}

// watch keeps a connection to one broker.
func (s *sentinel) watch(ctx context.Context, addr string) {
	for {
		conn, err := s.reach(ctx, addr)
		if err == nil {
			s.present(addr)
			err = errors.Join(s.hold(ctx, conn), conn.Close())
		}
		if ctx.Err() != nil {
			return
		}
		s.absent(addr, err)
		if !sleep(ctx, awayRetry) {
			return
		}
	}
}

// reach connects to a broker and makes sure that it answers. One that was away must be in the route again too, or a
// new client would not find it.
func (s *sentinel) reach(ctx context.Context, addr string) (*remoting.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, awayTimeout)
	defer cancel()
	conn, err := remoting.Dial(ctx, addr, s.creds)
	if err != nil {
		return nil, err
	}
	if _, err = s.ask(ctx, conn); err == nil && s.isAway(addr) { // any answer will do
		var masters []string
		if masters, err = s.masters(ctx); err == nil && !slices.Contains(masters, addr) {
			err = fmt.Errorf("it is not in the route of topic %s yet", s.topic)
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (s *sentinel) hold(ctx context.Context, conn *remoting.Conn) error {
	for {
		if err := conn.Idle(ctx, keepAlive); err != nil {
			return err
		}
		bound, cancel := context.WithTimeout(ctx, aliveTimeout)
		_, err := s.ask(bound, conn)
		cancel()
		if err != nil {
			return err
		}
	}
}

func (s *sentinel) present(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.brokers[addr]; w != nil && w.away != nil {
		w.away = nil
		s.signal()
	}
}

func (s *sentinel) absent(addr string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.brokers[addr]; w != nil {
		if w.away == nil {
			w.since = time.Now()
		}
		w.away = why
	}
}

func (s *sentinel) isAway(addr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.brokers[addr]
	return w != nil && w.away != nil
}

// anyAway is called with the lock held.
func (s *sentinel) anyAway() bool {
	for _, w := range s.brokers {
		if w.away != nil {
			return true
		}
	}
	return false
}

func (s *sentinel) signal() {
	select {
	case s.returned <- struct{}{}:
	default: // one is enough
	}
}

// forgetReturn drops a signal that nobody has taken yet.
func (s *sentinel) forgetReturn() {
	select {
	case <-s.returned:
	default:
	}
}

// ready reports nil while a broker of the topic can be reached, or nothing is known of any; else why not.
func (s *sentinel) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reasons []error
	for _, addr := range slices.Sorted(maps.Keys(s.brokers)) {
		w := s.brokers[addr]
		if w.away == nil {
			return nil
		}
		reasons = append(reasons, fmt.Errorf("broker %s has been away for %v: %w", addr, time.Since(w.since).Round(time.Second), w.away))
	}
	return errors.Join(reasons...)
}
