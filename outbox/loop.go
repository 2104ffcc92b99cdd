package outbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
)

// maxSuspects bounds the suspects that a loop remembers.
const maxSuspects = 200

// loop relays the records of one sink. Its fields belong to its goroutine, except for nudge.
type loop struct {
	cfg     RelayConfig
	store   store
	metrics *sinkMetrics
	log     *zap.Logger
	sink    Sink
	name    string
	nudge   chan struct{}

	breaker breaker
	pace    pace
	// suspects are records that timed out, or failed as a probe, while nothing else succeeded: they are sent last and
	// alone, and no probe takes one while another record is due.
	suspects    map[int64]struct{}
	lastSuccess time.Time
	// doubts are claims that failed with an error but may have taken effect. They are given back.
	doubts []*doubtfulClaim
}

func newLoop(cfg RelayConfig, s store, m *relayMetrics, sink Sink) *loop {
	return &loop{
		cfg: cfg, store: s, metrics: m.sink(sink.Name()), log: cfg.Logger.With(zap.String("sink", sink.Name())),
		sink: sink, name: sink.Name(), nudge: make(chan struct{}, 1),
		breaker: breaker{cfg: cfg.Breaker}, pace: pace{perSecond: cfg.DrainRate}, suspects: map[int64]struct{}{},
	}
}

// poke makes an idle loop look at once. It never blocks.
func (l *loop) poke() {
	select {
	case l.nudge <- struct{}{}:
	default:
	}
}

// run works until soft ends. An error of a round is followed by a pause and the next round, whatever it was.
func (l *loop) run(soft, hard context.Context) {
	failing := newErrorStreak(l.log, "relay")
	poll := l.cfg.PollMin
	for soft.Err() == nil {
		res, err := l.runOnce(soft, hard)
		errs := failing.observe(soft, err)
		switch {
		case err != nil:
			sleep(soft, min(l.cfg.PollMin<<min(errs, 10), 5*l.cfg.PollMax))
		case res.pause > 0:
			sleep(soft, res.pause)
		case res.more:
		case res.claimed > 0:
			poll = l.cfg.PollMin
			l.idle(soft, poll)
		default:
			poll = min(2*poll, l.cfg.PollMax)
			l.idle(soft, poll)
		}
	}
	if err := l.settleDoubts(hard); err != nil {
		l.log.Warn("a claim with unknown outcome is left to its lease", zap.Error(err))
	}
}

// idle waits for d or a nudge.
func (l *loop) idle(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-l.nudge:
	}
}

// roundResult is the outcome of one round.
type roundResult struct {
	claimed int
	more    bool          // more records may be due
	pause   time.Duration // the sink is not to be used before, whatever is due
}

// runOnce claims one batch and relays it.
func (l *loop) runOnce(soft, hard context.Context) (roundResult, error) {
	if err := l.settleDoubts(hard); err != nil {
		return roundResult{}, err
	}
	now := time.Now()
	state := l.breaker.state(now)
	l.metrics.breaker.Set(float64(state))
	if state == breakerOpen {
		return roundResult{pause: l.breaker.openUntil.Sub(now)}, nil
	}
	if wait := l.pace.wait(now); wait > 0 {
		return roundResult{pause: wait}, nil
	}
	probe := state == breakerHalfOpen
	c, alone, err := l.claim(hard, probe)
	if err != nil {
		return roundResult{}, err
	}
	if !c.full && !probe {
		l.pace.stop()
	}
	if len(c.rows) == 0 {
		return l.lostRace(c), nil
	}
	l.pace.spend(now, len(c.rows))
	l.cfg.Hooks.AfterClaim()
	err = l.deliver(soft, hard, c, probe, alone)
	res := roundResult{claimed: len(c.rows), more: c.full}
	if l.breaker.failures > 0 { // a failure below the breaker's limit: not again at once
		res.pause = l.cfg.PollMin
	}
	return res, err
}

// lostRace is the result of a claim without rows. If there were candidates, another relay took them all; going on
// at once is right, but not in step with the other.
func (l *loop) lostRace(c claim) roundResult {
	if !c.full {
		return roundResult{}
	}
	return roundResult{pause: time.Duration(1+int(c.since.UnixNano()%4)) * time.Millisecond}
}

// claim takes the next batch; a probe takes one record. alone is true if no other record is due.
func (l *loop) claim(ctx context.Context, probe bool) (c claim, alone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.StatementTimeout)
	defer cancel()
	q := claimRequest{sink: l.name, owner: newOwner(l.cfg.Instance), limit: l.pace.limit(l.cfg.Batch), lease: l.cfg.Lease}
	if probe {
		q.limit, q.avoid = 1, slices.Sorted(maps.Keys(l.suspects))
	}
	began := time.Now()
	c, err = l.store.takeClaim(ctx, l.cfg.Claim, q)
	if err == nil && len(c.rows) == 0 && len(q.avoid) > 0 {
		// Everything that is due is suspect.
		alone, q.avoid = true, nil
		c, err = l.store.takeClaim(ctx, l.cfg.Claim, q)
	} else {
		alone = !probe && !c.full && len(c.rows) == 1
	}
	l.metrics.claimSeconds.Observe(time.Since(began).Seconds())
	var doubt *doubtfulClaim
	if errors.As(err, &doubt) {
		l.doubts = append(l.doubts, doubt)
	}
	return c, alone, err
}

// settleDoubts gives back what claims with an unknown outcome may hold.
func (l *loop) settleDoubts(ctx context.Context) error {
	for len(l.doubts) > 0 {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.StatementTimeout)
		_, err := l.store.release(ctx, l.doubts[0].owner, l.doubts[0].ids)
		cancel()
		if err != nil {
			return err
		}
		l.doubts = l.doubts[1:]
	}
	return nil
}
