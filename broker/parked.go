package broker

import (
	"sync"
	"time"
)

// maxParked bounds the pulls that wait; one more is answered "nothing found"
// at once.
const maxParked = 20000

// sweepInterval is the precision of the time-out of a waiting pull.
const sweepInterval = 200 * time.Millisecond

// parked holds the pulls that wait for messages. They cost no goroutine: one
// loop answers them (pullLoop).
type parked struct {
	mu      sync.Mutex
	waiting map[string][]*pull // by topic name: the topic may not exist yet
	count   int
	closed  bool
	arrival map[queueKey]struct{} // queues that got messages, not looked at yet
	wake    wakeup
	metrics *metrics
}

func newParked(m *metrics) *parked {
	return &parked{waiting: make(map[string][]*pull), arrival: make(map[queueKey]struct{}), metrics: m}
}

// add returns false when the pull must be answered at once; else the pull
// belongs to pullLoop from now on.
func (p *parked) add(pl *pull) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.count >= maxParked || pl.r.c.closed.Load() {
		return false
	}
	p.waiting[pl.topic] = append(p.waiting[pl.topic], pl)
	p.setCount(p.count + 1)
	return true
}

func (p *parked) setCount(n int) {
	p.count = n
	p.metrics.parkedPulls.Set(float64(n))
}

// arrived tells that queues got messages. It does not block.
func (p *parked) arrived(keys []queueKey) {
	p.mu.Lock()
	for _, key := range keys {
		p.arrival[key] = struct{}{}
	}
	p.mu.Unlock()
	p.wake.poke()
}

// takeArrived takes the pulls of queues that got messages.
func (p *parked) takeArrived(s *store) []*pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.arrival) == 0 {
		return nil
	}
	keys := p.arrival
	p.arrival = make(map[queueKey]struct{})
	return p.take(func(pl *pull) bool {
		info := s.topic(pl.topic)
		if info == nil {
			return false
		}
		_, ok := keys[info.key(pl.queue)]
		return ok
	})
}

// takeExpired takes the pulls whose time is over by now.
func (p *parked) takeExpired(now time.Time) []*pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(func(pl *pull) bool { return !now.Before(pl.deadline) })
}

// closeAll takes all pulls; add refuses from now on.
func (p *parked) closeAll() []*pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.take(func(*pull) bool { return true })
}

// forget drops the pulls of a connection.
func (p *parked) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.take(func(pl *pull) bool { return pl.r.c == c })
}

// take removes and returns the pulls that want is true for. mu is held.
func (p *parked) take(want func(*pull) bool) []*pull {
	var taken []*pull
	for topic, list := range p.waiting {
		kept := list[:0]
		for _, pl := range list {
			if want(pl) {
				taken = append(taken, pl)
			} else {
				kept = append(kept, pl)
			}
		}
		clear(list[len(kept):])
		p.waiting[topic] = kept
		if len(kept) == 0 {
			delete(p.waiting, topic)
		}
	}
	p.setCount(p.count - len(taken))
	return taken
}

// pullLoop answers waiting pulls when messages arrive, when their time is over,
// and all of them when the broker stops.
func (b *Broker) pullLoop() {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-b.parked.wake.c():
			for _, pl := range b.parked.takeArrived(b.store) {
				pl.r.guard(func() { b.resumePull(pl) })
			}
		case <-tick.C:
			for _, pl := range b.parked.takeExpired(time.Now()) {
				pl.nothing(b)
			}
		case <-b.stop:
			for _, pl := range b.parked.closeAll() {
				pl.stopping()
			}
			return
		}
	}
}
