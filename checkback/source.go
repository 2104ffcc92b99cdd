package checkback

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// pingTimeout bounds the question whether the database answers at all.
	pingTimeout = 250 * time.Millisecond
	// downFor is how long a database that did not answer is left alone.
	downFor = time.Second
	// lateMargin is what a Resolver may take beyond its deadline before it is left behind.
	lateMargin = 100 * time.Millisecond
	// maxHanging bounds the checks of one Resolver that were left behind and have not returned.
	maxHanging = 4
)

// errDown is the reason of an answer that was given without asking the database.
var errDown = errors.New("the database did not answer a moment ago")

// source is a Resolver with what is known about its database. The client answers the broker's checks one at a time, a
// thousand of them after an outage: only the first may wait for a database that is down.
type source struct {
	Resolver

	mu      sync.Mutex
	down    bool
	until   time.Time // while down: when it may be asked again
	asking  bool      // somebody finds out whether it is up again
	hanging int
}

// verdict is what a check came to.
type verdict struct {
	answer Answer
	reason string
	err    error
	stack  []byte // of a panic
}

// check asks decide, unless the database is known to be down. It returns soon after the deadline even if the Resolver
// does not: that one is left behind, and whatever it still does is no answer. A tombstone that it still inserts is
// found by the next check.
func (s *source) check(ctx context.Context, deadline time.Duration, decide func(ctx context.Context) verdict) verdict {
	if !s.enter() {
		return verdict{Unknown, reasonDown, errDown, nil}
	}
	done := make(chan verdict, 1)
	go func() {
		defer s.leave()
		done <- s.attempt(ctx, deadline, decide)
	}()
	late := time.NewTimer(deadline + 2*pingTimeout + lateMargin)
	defer late.Stop()
	select {
	case v := <-done:
		return v
	case <-late.C:
		s.giveUp()
		return verdict{Unknown, reasonError, errors.New("the resolver did not return at its deadline"), nil}
	}
}

// attempt runs in a goroutine of its own, so that its panics are caught here.
func (s *source) attempt(ctx context.Context, deadline time.Duration, decide func(ctx context.Context) verdict) (v verdict) {
	defer func() {
		if p := recover(); p != nil {
			v = verdict{Unknown, reasonPanic, fmt.Errorf("panic: %v", p), debug.Stack()}
		}
	}()
	if !s.up(ctx) {
		return verdict{Unknown, reasonDown, errDown, nil}
	}
	bounded, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	v = decide(bounded)
	if v.reason == reasonError && ctx.Err() == nil && s.ping(ctx) != nil {
		s.markDown(true) // not this half message's own trouble: the next ones need not wait for it
	}
	return v
}

// enter counts a check in; false when too many hang already, or the database is down.
func (s *source) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hanging >= maxHanging || s.down && (s.asking || time.Now().Before(s.until)) {
		return false
	}
	s.hanging++
	s.asking = s.down
	return true
}

func (s *source) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hanging--
	s.asking = false
}

// up finds out whether a database that was down answers again.
func (s *source) up(ctx context.Context) bool {
	s.mu.Lock()
	down := s.down
	s.mu.Unlock()
	if !down {
		return true
	}
	up := s.ping(ctx) == nil
	s.markDown(!up)
	return up
}

func (s *source) markDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.until = down, time.Now().Add(downFor)
}

// giveUp leaves a check behind, which may never return: another one may ask after a while.
func (s *source) giveUp() {
	s.markDown(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking = false
}

// ping reports nil also for a Resolver that cannot tell.
func (s *source) ping(ctx context.Context) error {
	p, ok := s.Resolver.(Pinger)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return p.Ping(ctx)
}
