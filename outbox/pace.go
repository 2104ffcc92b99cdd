package outbox

import "time"

// pace holds a sink that has just come back to a steady rate until its backlog is drained. It belongs to one
// goroutine.
type pace struct {
	perSecond int
	active    bool
	next      time.Time // when the next batch may be claimed
	fresh     bool      // whose turn it is
}

func (p *pace) start(now time.Time) { p.active, p.next = true, now }
func (p *pace) stop()               { p.active = false }

// limit bounds a batch, so that no more than a tenth of a second's worth is sent in one burst.
func (p *pace) limit(batch int) int {
	if !p.active {
		return batch
	}
	return min(batch, max(1, p.perSecond/10))
}

// freshTurn reports whether the next batch is for the newest records instead of the oldest. While a backlog is drained
// every other one is: what is written meanwhile does not wait behind it.
func (p *pace) freshTurn() bool {
	p.fresh = p.active && !p.fresh
	return p.fresh
}

// spend accounts for n records claimed at now.
func (p *pace) spend(now time.Time, n int) {
	if !p.active {
		return
	}
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(n) * time.Second / time.Duration(p.perSecond))
}

// wait is how long to wait before the next claim.
func (p *pace) wait(now time.Time) time.Duration {
	if !p.active {
		return 0
	}
	return max(0, p.next.Sub(now))
}
