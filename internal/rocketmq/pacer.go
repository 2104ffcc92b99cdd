package rocketmq

import "time"

// Restarts of a client are this far apart: each leaves goroutines of the client behind for up to a day, and something
// on the way that closes connections again and again must not make that many.
const (
	restartGapMin = 10 * time.Second
	restartGapMax = 5 * time.Minute
	restartCalm   = 10 * time.Minute
)

// pacer keeps restarts apart, further with each one until there was none for restartCalm.
type pacer struct {
	last time.Time
	gap  time.Duration
}

// next returns how long from now the next restart has to wait, and takes it for done then.
func (p *pacer) next(now time.Time) time.Duration {
	if p.last.IsZero() || now.Sub(p.last) >= restartCalm {
		p.last, p.gap = now, restartGapMin
		return 0
	}
	wait := max(0, p.last.Add(p.gap).Sub(now))
	p.last, p.gap = now.Add(wait), min(2*p.gap, restartGapMax)
	return wait
}
