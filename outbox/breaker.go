package outbox

import "time"

// BreakerConfig tunes the breaker of each sink.
type BreakerConfig struct {
	// Failures is how many unreachable sends in a row open the breaker. Defaults to 1: an unreachable sink is not
	// asked again at once, and the first pause is short.
	Failures int
	// OpenMin is the first pause before a probe; it doubles with every probe that fails. Defaults to 500 ms.
	OpenMin time.Duration
	// OpenMax bounds the pause. Defaults to 10 s.
	OpenMax time.Duration
}

// breakerState is also the value of the breaker metric.
type breakerState int

const (
	breakerClosed   breakerState = 0
	breakerHalfOpen breakerState = 1 // one record is sent as a probe
	breakerOpen     breakerState = 2 // nothing is claimed
)

// breaker keeps a sink that is down from being asked for every record. It belongs to one goroutine.
//
//	closed --Failures in a row--> open --pause over--> half-open --success--> closed
//	                               ^-------failure, pause doubled----+
type breaker struct {
	cfg       BreakerConfig
	failures  int // in a row, while closed
	pause     time.Duration
	openUntil time.Time // zero while closed
}

func (b *breaker) state(now time.Time) breakerState {
	switch {
	case b.openUntil.IsZero():
		return breakerClosed
	case now.Before(b.openUntil):
		return breakerOpen
	}
	return breakerHalfOpen
}

func (b *breaker) failure(now time.Time) {
	if b.openUntil.IsZero() {
		b.failures++
		if b.failures < b.cfg.Failures {
			return
		}
		b.pause = b.cfg.OpenMin
	} else {
		b.pause = min(2*b.pause, b.cfg.OpenMax)
	}
	b.openUntil = now.Add(b.pause)
}

// success closes the breaker and reports whether it was open.
func (b *breaker) success() (recovered bool) {
	recovered = !b.openUntil.IsZero()
	b.failures, b.openUntil = 0, time.Time{}
	return recovered
}
