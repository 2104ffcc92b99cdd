package txmsg

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// BreakerConfig tunes the circuit breaker around half messages. While it is open no half message is tried, so a
// broker that is down costs a caller nothing but the fallback.
type BreakerConfig struct {
	// Failures in a row that open the breaker. Defaults to 5.
	Failures uint32
	// OpenFor is how long it stays open before one probe is let through. Defaults to 2 s.
	OpenFor time.Duration
}

func (c BreakerConfig) withDefaults() BreakerConfig {
	if c.Failures == 0 {
		c.Failures = 5
	}
	if c.OpenFor == 0 {
		c.OpenFor = 2 * time.Second
	}
	return c
}

func newBreaker(cfg BreakerConfig) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "txmsg half messages",
		MaxRequests: 1,
		Timeout:     cfg.OpenFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= cfg.Failures },
		// A caller that went away, or a message the broker refused for itself, says nothing about the broker.
		IsExcluded: func(err error) bool { return errors.Is(err, errCallerGone) || errors.Is(err, ErrTooLarge) },
	})
}
