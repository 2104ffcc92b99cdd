package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
)

// loop relays the records of one sink. Its fields belong to its goroutine, except for nudge.
type loop struct {
	cfg     RelayConfig
	store   store
	metrics *sinkMetrics
	log     *zap.Logger
	sink    Sink
	name    string
	nudge   chan struct{}

	renewEvery time.Duration // a lease while its records are worked on

	batch    int // size of the next, grown while there is a backlog
	breaker  breaker
	pace     pace
	order    *order // nil unless the sink keeps the order of its keys
	suspects suspects
	// suspectsTurn is true after a round with a success of others: whatever a suspect does next is its own doing.
	suspectsTurn bool
	// silent are records, hopeless of them at most, whose own sends have timed out since the sink last answered.
	silent      []int64
	lastSuccess time.Time
	// doubts are claims that failed with an error but may have taken effect. They are given back.
	doubts []*doubtfulClaim
}

func newLoop(cfg RelayConfig, s store, m *relayMetrics, sink Sink) *loop {
	l := &loop{
		cfg: cfg, store: s, metrics: m.sink(sink.Name()), log: cfg.Logger.With(zap.String("sink", sink.Name())),
		sink: sink, name: sink.Name(), nudge: make(chan struct{}, 1), renewEvery: cfg.Lease / 3, batch: cfg.Batch,
		breaker: breaker{cfg: cfg.Breaker}, pace: pace{perSecond: cfg.DrainRate},
	}
	l.pace.start(time.Now()) // this relay was away
	if policy, ok := cfg.Ordered[l.name]; ok {
		l.order = newOrder(policy)
	}
	return l
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
	idle := poll{least: l.cfg.PollMin, most: l.cfg.PollMax}
	for soft.Err() == nil {
		res, err := l.runOnce(soft, hard)
		errs := failing.observe(soft, err)
		switch {
		case err != nil:
			sleep(soft, min(l.cfg.PollMin<<min(errs, 10), 5*l.cfg.PollMax))
		case res.pause > 0 && res.fresh:
			l.idle(soft, min(res.pause, idle.next(res.claimed > 0)))
		case res.pause > 0:
			sleep(soft, res.pause)
		case res.more:
		default:
			l.idle(soft, idle.next(res.claimed > 0))
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
	fresh   bool          // the pause is for the backlog alone
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
	t, err := l.nextTurn(hard, now, state == breakerHalfOpen)
	if err != nil {
		return roundResult{}, err
	}
	c, alone, err := l.claim(hard, t)
	if err != nil {
		if time.Since(now) > l.cfg.StatementTimeout/2 { // perhaps too large for its time: not again as it is
			l.batch = max(1, l.batch/2)
		}
		return roundResult{}, err
	}
	if t.until != "" {
		l.pace.spend(now, len(c.rows))
	}
	if len(c.rows) == 0 {
		return l.nothing(t, c), nil
	}
	suspect := l.suspects.has(c.rows[0].id)
	l.cfg.Hooks.AfterClaim()
	l.grow(t, c)
	err = l.deliver(soft, hard, c, t.probe, alone)
	l.suspectsTurn = !suspect && l.lastSuccess.After(now)
	res := roundResult{claimed: len(c.rows), more: c.full || t.until != ""}
	if t.fresh() && !c.full {
		res = l.untilBurst(res)
	}
	if l.breaker.failures > 0 { // a failure below the breaker's limit: not again at once
		res.pause, res.fresh = l.cfg.PollMin, false
	}
	return res, err
}

// turn is what a round is for.
type turn struct {
	limit int
	probe bool   // one record, to see whether the sink is back
	since string // only what became due later than the drain of a backlog began, unless empty
	until string // only that backlog, likewise
}

func (t turn) fresh() bool { return t.since != "" }

// nextTurn is the turn of a round that begins at now.
func (l *loop) nextTurn(ctx context.Context, now time.Time, probe bool) (turn, error) {
	if probe {
		return turn{limit: 1, probe: true}, nil
	}
	if l.pace.active && l.pace.since == "" {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.StatementTimeout)
		defer cancel()
		since, err := l.store.clock(ctx)
		if err != nil {
			return turn{}, err
		}
		l.pace.since = since
		if l.order != nil {
			l.order.restart() // what was put off is behind the place that a pass has reached
		}
	}
	if l.pace.freshTurn(now) {
		return turn{limit: l.batch, since: l.pace.since}, nil
	}
	return turn{limit: l.pace.limit(l.batch), until: l.pace.since}, nil
}

// takeBacklog claims of the backlog alone, and ends the drain when that was the rest of it: what has become due since
// is no reason to go on, or a relay that always meets as much of that would never be done. alone is as in claim.
func (l *loop) takeBacklog(ctx context.Context, q claimRequest) (c claim, alone bool, err error) {
	if c, err = l.take(ctx, q); err != nil {
		return c, false, err
	}
	switch {
	case c.full:
		if !l.pace.draining {
			l.pace.draining = true
			l.log.Info("draining a backlog, new events pass it", zap.Int("events_per_second", l.cfg.DrainRate))
		}
	case l.order != nil && l.order.rested: // it has not looked at the old end, and will not before
		l.pace.next = l.order.rest
	default:
		if l.pace.draining {
			l.log.Info("the backlog is drained")
		}
		l.pace.stop()
		alone = c.found == 1 && l.suspects.len() == 0 && !l.isDue(ctx, q.until)
	}
	return c, alone, nil
}

// isDue reports whether anything became due since; it says so too when it cannot be known.
func (l *loop) isDue(ctx context.Context, since string) bool {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.StatementTimeout)
	defer cancel()
	found, err := l.store.due(ctx, claimRequest{sink: l.name, limit: 1, since: since})
	return err != nil || len(found) > 0
}

// grow makes the next batch larger if this one was full: with a backlog, statements and sends are what costs.
func (l *loop) grow(t turn, c claim) {
	switch {
	case c.cut:
		l.batch = len(c.rows) // what is beyond it was read in vain
	case t.limit < l.batch: // says nothing about a whole batch
	case c.full && len(c.rows) >= l.batch/2:
		l.batch = min(2*l.batch, l.cfg.BatchMax)
	case !t.fresh(): // that there is little of it says nothing about the backlog
		l.batch = l.cfg.Batch
	}
}

// nothing is the result of a claim without rows.
func (l *loop) nothing(t turn, c claim) roundResult {
	if lost := c.full && c.found > 0; t.fresh() && !lost {
		return l.untilBurst(roundResult{})
	}
	return l.lostRace(c)
}

// untilBurst is the result of a round after which nothing but the backlog is due.
func (l *loop) untilBurst(res roundResult) roundResult {
	now := time.Now()
	l.pace.look, res.pause = now.Add(l.cfg.PollMin), l.pace.wait(now)
	res.more, res.fresh = res.pause == 0, res.pause > 0
	return res
}

// lostRace is the result of a claim without rows. If there were candidates, another relay took them all; going on
// at once is right, but not in step with the other.
func (l *loop) lostRace(c claim) roundResult {
	if !c.full {
		return roundResult{}
	}
	return roundResult{pause: time.Millisecond + rand.N(3*time.Millisecond)}
}

// claim takes the next batch. Suspects come one at a time: in their turn, and when nothing else is due. alone is true if
// no other record is due; a probe does not count suspects.
func (l *loop) claim(ctx context.Context, t turn) (c claim, alone bool, err error) {
	began := time.Now()
	defer func() { l.metrics.claimSeconds.Observe(time.Since(began).Seconds()) }()
	q := claimRequest{limit: t.limit, since: t.since, until: t.until, avoid: sorted(l.suspects.ids)}
	if t.fresh() {
		c, err = l.take(ctx, q)
		return c, false, err
	}
	if !t.probe && l.suspectsTurn {
		l.suspectsTurn = false
		if c, err = l.claimSuspect(ctx); err != nil || len(c.rows) > 0 {
			return c, false, err
		}
	}
	if t.until != "" {
		c, alone, err = l.takeBacklog(ctx, q)
		q.until = ""
	}
	if t.probe || !l.pace.active && c.found == 0 && err == nil {
		c, err = l.take(ctx, q)
		alone = !t.probe && c.found == 1 && !c.full && l.suspects.len() == 0
	}
	if err != nil || c.found > 0 || l.suspects.len() == 0 {
		return c, alone, err
	}
	c, err = l.claimSuspect(ctx)
	return c, t.probe || l.suspects.len() == 1, err
}

// claimSuspect takes the suspect that has been one for longest. One that cannot be had was sent or taken by another
// relay, and is forgotten.
func (l *loop) claimSuspect(ctx context.Context) (claim, error) {
	for l.suspects.len() > 0 {
		id := l.suspects.ids[0]
		c, err := l.take(ctx, claimRequest{limit: 1, only: []int64{id}})
		if err != nil || len(c.rows) > 0 {
			return c, err
		}
		l.suspects.drop(id)
	}
	return claim{}, nil
}

// take claims what q says for this loop.
func (l *loop) take(ctx context.Context, q claimRequest) (claim, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.StatementTimeout)
	defer cancel()
	q.sink, q.owner, q.lease, q.bytes = l.name, newOwner(l.cfg.Instance), l.cfg.Lease, l.cfg.BatchBytes
	var c claim
	var err error
	if l.order != nil && len(q.only) == 0 {
		c, err = l.store.takeOrdered(ctx, l.cfg.Claim, l.order, q)
	} else {
		c, err = l.store.takeClaim(ctx, l.cfg.Claim, q)
	}
	var doubt *doubtfulClaim
	if errors.As(err, &doubt) {
		l.doubts = append(l.doubts, doubt)
	}
	return c, err
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
