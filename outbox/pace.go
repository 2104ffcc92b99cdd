package outbox

import "time"

// pace holds what waited while a sink or its relay was away to a steady rate, until there is no more of it. What became
// due since is no backlog, and is not held: it would never be caught up with if more is written than the rate. It belongs
// to one goroutine.
type pace struct {
	perSecond int
	active    bool
	draining  bool      // a backlog was met
	since     string    // the database's time when it began, as the database writes it; empty until it was asked
	next      time.Time // when the next batch of the backlog may be claimed
	fresh     bool      // whose turn it was
	look      time.Time // when it is worth while to look for more of what became due since
}

func (p *pace) start(now time.Time) {
	*p = pace{perSecond: p.perSecond, active: true, next: now, fresh: true}
}

func (p *pace) stop() { *p = pace{perSecond: p.perSecond} }

// burstsPerSecond is how evenly a backlog is drained: with 10 the consumers on the same machine were busy with one burst
// for so long that the p99 of its API was eight times what it is without a drain; with 50 it is nearly the same.
const burstsPerSecond = 50

// limit bounds a batch of the backlog, so that one burst is no more than its share of a second.
func (p *pace) limit(batch int) int {
	if !p.active {
		return batch
	}
	return min(batch, (p.perSecond+burstsPerSecond-1)/burstsPerSecond)
}

// freshTurn reports whether the next batch is for what became due since. While the backlog may not be touched every one
// is, and otherwise every other one as long as there may be any.
func (p *pace) freshTurn(now time.Time) bool {
	p.fresh = p.active && (p.wait(now) > 0 || !p.fresh && !now.Before(p.look))
	return p.fresh
}

// spend accounts for n records of the backlog claimed at now.
func (p *pace) spend(now time.Time, n int) {
	if !p.active {
		return
	}
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(n) * time.Second / time.Duration(p.perSecond))
}

// wait is how long to wait before the next claim from the backlog.
func (p *pace) wait(now time.Time) time.Duration {
	if !p.active {
		return 0
	}
	return max(0, p.next.Sub(now))
}
