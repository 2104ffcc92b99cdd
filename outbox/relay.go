package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// stopGrace is how much longer Stop waits for a sink that does not return although its context has ended.
const stopGrace = 2 * time.Second

// Errors of the life cycle.
var (
	ErrStarted = errors.New("outbox: relay was started before")
	ErrStopped = errors.New("outbox: relay is stopped")
)

// Relay sends event records to their sinks. One goroutine works for each sink, so that a slow one holds up no other;
// any number of relays may work on one table. A Relay runs once: it cannot be started again after Stop. It is safe
// for concurrent use.
type Relay struct {
	cfg     RelayConfig
	store   store
	metrics *relayMetrics
	loops   []*loop

	mu      sync.Mutex
	started bool
	stopped bool
	unready error // why it does not work yet
	// soft ends claiming, hard ends everything.
	endSoft, endHard context.CancelFunc
	done             chan struct{} // closed when every goroutine has ended
}

// NewRelay returns a Relay; it does nothing before Start.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.Named("outbox.relay")
	m, err := newRelayMetrics(cfg.Registerer, cfg.Sinks)
	if err != nil {
		return nil, err
	}
	r := &Relay{cfg: cfg, store: newStore(cfg.DB), metrics: m, unready: ErrNotChecked, done: make(chan struct{})}
	for _, s := range cfg.Sinks {
		r.loops = append(r.loops, newLoop(cfg, r.store, m, s))
	}
	return r, nil
}

// Start begins to work in the background, as soon as the database can be reached and has the indexes that the relay
// needs, see Ready. It fails when the relay was started or stopped before.
func (r *Relay) Start() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopped:
		return ErrStopped
	case r.started:
		return ErrStarted
	}
	r.started = true
	hard, endHard := context.WithCancel(context.Background())
	soft, endSoft := context.WithCancel(hard)
	r.endSoft, r.endHard = endSoft, endHard
	go func() {
		defer close(r.done)
		if r.awaitIndexes(soft) {
			r.work(soft, hard)
		}
	}()
	return nil
}

// work returns when every part has ended.
func (r *Relay) work(soft, hard context.Context) {
	var wg sync.WaitGroup
	for _, l := range r.loops {
		wg.Go(func() { l.run(soft, hard) })
	}
	for _, part := range []func(context.Context){r.runReclaim, r.runStats, r.runRetention} {
		wg.Go(func() { part(soft) })
	}
	wg.Wait()
}

// Stop ends the relay and waits for its goroutines. No record is claimed any more; those not yet handed to a sink
// are released, sends in progress finish and are marked. When ctx ends first they are cut off, and their records
// wait for the end of their lease. Stop may be called at any time and more than once.
//
// The error is nil, or says that ctx ended first.
func (r *Relay) Stop(ctx context.Context) error {
	if !r.beginStop() {
		return nil
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
	}
	r.endHard()
	timer := time.NewTimer(stopGrace)
	defer timer.Stop()
	select {
	case <-r.done:
		return fmt.Errorf("outbox: relay was cut off: %w", context.Cause(ctx))
	case <-timer.C:
		return fmt.Errorf("outbox: a sink has not returned from Send: %w", context.Cause(ctx))
	}
}

// beginStop reports whether there is something to wait for.
func (r *Relay) beginStop() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	if !r.started {
		return false
	}
	r.endSoft()
	return true
}

// Nudge says that records were committed, so that they are sent before the next poll. It never blocks.
func (r *Relay) Nudge() {
	for _, l := range r.loops {
		l.poke()
	}
}

// every calls once now and then at each interval until ctx ends. The first error of a row of them is logged, and
// their end.
func every(ctx context.Context, log *zap.Logger, what string, interval time.Duration, once func(context.Context) error) {
	failing := newErrorStreak(log, what)
	for {
		failing.observe(ctx, once(ctx))
		if !sleep(ctx, interval) {
			return
		}
	}
}

// errorStreak logs the first error of a row of errors and their end, so that an outage does not flood the log.
type errorStreak struct {
	log  *zap.Logger
	what string
	n    int
}

func newErrorStreak(log *zap.Logger, what string) *errorStreak {
	return &errorStreak{log: log, what: what}
}

// observe takes the outcome of one round and returns the number of errors in a row.
func (s *errorStreak) observe(ctx context.Context, err error) int {
	switch {
	case err == nil && s.n > 0:
		s.log.Info("works again", zap.String("task", s.what), zap.Int("errors", s.n))
		s.n = 0
	case err != nil && ctx.Err() != nil: // we are being stopped
	case err != nil:
		s.n++
		if s.n == 1 {
			s.log.Warn("failed, going on", zap.String("task", s.what), zap.Error(err))
		}
	}
	return s.n
}
