package compare

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// settleFault is how long after a fault orders may still be on their way.
	settleFault = 90 * time.Second
	// timelineStep is the interval of the timeline.
	timelineStep = 500 * time.Millisecond
	// The wait after a fault sends marker orders through the same way: when so many in a row have come through, every
	// queue of the topic flows again, and what is still missing then is not held up anywhere.
	markers     = 24
	markerPause = 150 * time.Millisecond
	markerUser  = 1_000_000
)

// fault makes one fault for every strategy at the same moment, each in a place of its own.
func (r *run) fault(ctx context.Context, f Fault) error {
	report := FaultReport{Fault: f, About: f.About(), Rate: r.faultRate()}
	r.tell(fmt.Sprintf("%s: starting the services", f))
	places, err := r.open(ctx, f)
	if err != nil {
		return err
	}
	defer r.closeAll(ctx, places)
	for _, p := range places {
		if err := r.warmUp(ctx, p); err != nil {
			return err
		}
	}
	r.tell(fmt.Sprintf("%s: %s", f, names(r.Strategies)))
	results := make([]FaultResult, len(places))
	errs := make([]error, len(places))
	finished := make(chan struct{}, len(places))
	for i, p := range places {
		go func() {
			results[i], errs[i] = r.underFault(ctx, p, f, report.Rate)
			finished <- struct{}{}
		}()
	}
	for range places {
		<-finished
		r.step(fmt.Sprintf("%s: waiting for what is still on its way", f))
	}
	// What some have shown is kept whatever became of the others.
	for _, res := range results {
		if res.Strategy != "" {
			report.Results = append(report.Results, res)
		}
	}
	r.report.Faults = append(r.report.Faults, report)
	return errors.Join(errs...)
}

// faultRate is what a strategy gets under a fault. It must be well below what each can do, or the fault would be the
// load.
func (r *run) faultRate() float64 {
	if r.FaultRate > 0 {
		return r.FaultRate
	}
	slowest := 200.0
	for _, name := range r.report.ran() {
		var done []float64
		for _, round := range r.report.Rounds {
			if round.Strategy == name {
				done = append(done, float64(round.Samples.created())/round.Seconds)
			}
		}
		if len(done) > 0 {
			slowest = min(slowest, median(done))
		}
	}
	// All strategies share the machine now.
	return float64(int(min(max(slowest/float64(2*max(1, len(r.Strategies))), 10), 100)))
}

// underFault sends orders, makes the fault while they come, waits until what can come has come, and judges.
func (r *run) underFault(ctx context.Context, p *place, f Fault, rate float64) (res FaultResult, err error) {
	whole := faultBefore + faultLasts + faultAfter
	calls := workloadDuring(r.Seed^0xFA17, whole, rate)
	began := time.Now()
	var (
		samples []sample
		load    sync.WaitGroup
	)
	load.Go(func() { samples = p.caller.openLoop(ctx, calls) })
	w, err := makeFault(ctx, p, f, began)
	load.Wait()
	res = FaultResult{Strategy: p.strategy.Name, FromMS: -1, ToMS: -1, Saw: map[Outcome]int{}, P99MS: -1, MaxMS: -1, RecoverySeconds: -1}
	if !w.from.IsZero() && !w.to.IsZero() {
		res.FromMS, res.ToMS = ms(w.from.Sub(began)), ms(w.to.Sub(began))
	}
	for _, s := range samples {
		res.Saw[s.outcome]++
	}
	unsettled := ""
	if err == nil {
		unsettled, err = accepts(ctx, p, w.back)
	}
	if err == nil && unsettled == "" {
		unsettled, err = r.settle(ctx, p, w.back)
	}
	ended := err
	// What was measured is kept also when the run ends here.
	if err := res.measure(context.WithoutCancel(ctx), p, samples, began, w, ended == nil && unsettled == ""); err != nil {
		res.NotJudged = err.Error()
		return res, errors.Join(ended, fmt.Errorf("%s: %w", p.strategy.Name, err))
	}
	if ended != nil {
		res.NotJudged = "the run ended before everything could have come"
		return res, fmt.Errorf("%s: %w", p.strategy.Name, ended)
	}
	j, err := judge(ctx, p)
	if err != nil {
		res.NotJudged = err.Error()
		return res, fmt.Errorf("%s: %w", p.strategy.Name, err)
	}
	j.Unsettled = unsettled
	res.Judged = &j
	return res, nil
}

// measure fills in times and counts.
func (res *FaultResult) measure(ctx context.Context, p *place, samples []sample, began time.Time, w window, whole bool) error {
	rec, err := readRecords(p.Records())
	if err != nil {
		return err
	}
	orders, err := readOrders(ctx, p.Order())
	if err != nil {
		return err
	}
	res.Samples = columns(samples, rec, began)
	if len(samples) > 0 {
		res.P99MS, res.MaxMS = quantile(res.Samples.LatencyMS, 0.99), quantile(res.Samples.LatencyMS, 1)
	}
	if took, known := recovery(samples, orders, rec, w); known && whole {
		res.RecoverySeconds = took.Seconds()
	}
	res.timeline(samples, rec, orders, began)
	return nil
}

// window is the time of a fault: from its beginning to its end, after which the service was back at the latest.
type window struct{ from, to, back time.Time }

// makeFault waits for its moment, makes the fault and ends it, and returns its window.
func makeFault(ctx context.Context, p *place, f Fault, began time.Time) (w window, err error) {
	if !sleepUntil(ctx, began.Add(faultBefore)) {
		return w, context.Cause(ctx)
	}
	w.from = time.Now()
	if f == FaultKill {
		return kills(ctx, p, w)
	}
	begin, end := faultActions(ctx, p, f)
	if err := begin(); err != nil {
		return w, err
	}
	waited := sleepUntil(ctx, w.from.Add(faultLasts))
	w.to = time.Now()
	w.back = w.to
	if err := end(); err != nil {
		return w, err
	}
	if !waited {
		return w, context.Cause(ctx)
	}
	return w, nil
}

// kills kills the service again and again and starts it each time. The fault ends with the last kill: the start belongs
// to the recovery.
func kills(ctx context.Context, p *place, w window) (window, error) {
	for i := range killTimes {
		if !sleepUntil(ctx, w.from.Add(time.Duration(i)*faultLasts/(killTimes-1))) {
			return w, context.Cause(ctx)
		}
		if err := p.Kill(); err != nil {
			return w, err
		}
		w.to = time.Now() // nothing answers from here on
		if err := p.Restart(ctx); err != nil {
			return w, err
		}
		w.back = time.Now()
	}
	return w, nil
}

// faultActions are how a fault begins and how it ends.
func faultActions(ctx context.Context, p *place, f Fault) (begin, end func() error) {
	plain := func(act func()) func() error { return func() error { act(); return nil } }
	switch f {
	case FaultBrokerOutage:
		return plain(p.Broker().Cut), plain(p.Broker().Pass)
	case FaultSlowBroker:
		return plain(func() { p.Broker().Delay(slowBy) }), plain(p.Broker().Pass)
	case FaultDBRestart:
		return plain(p.Database().Cut), plain(p.Database().Pass)
	case FaultAnswerLoss:
		return func() error { return p.LoseCommits(ctx, loseEvery) }, func() error { return p.LoseCommits(ctx, 0) }
	}
	nothing := func() error { return nil }
	return nothing, nothing
}

// mark sends a marker order.
func mark(ctx context.Context, p *place) (out Outcome, orderNo string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	out, orderNo, _ = p.caller.call(ctx, call{userID: markerUser, amountCents: 100})
	return out, orderNo
}

// accepts waits until a marker order is accepted: it tells when the place was back where the load ended before. It
// returns why it gave up; empty when it did not.
func accepts(ctx context.Context, p *place, healed time.Time) (why string, err error) {
	for deadline := healed.Add(settleFault); time.Now().Before(deadline); {
		if out, _ := mark(ctx, p); out == Created {
			return "", nil
		}
		if !sleepUntil(ctx, time.Now().Add(markerPause)) {
			return "", context.Cause(ctx)
		}
	}
	return fmt.Sprintf("no order was accepted in the %v after the fault", settleFault), nil
}

// settle waits until every order has its points, or until it is certain that the ones without never get them: the
// fault is over, marker orders come through every queue, nothing waits in the outbox, and no half message can be open.
// It returns why it gave up before it was certain; empty when it did not.
func (r *run) settle(ctx context.Context, p *place, healed time.Time) (unsettled string, err error) {
	sure, deadline := healed, healed.Add(settleFault)
	if p.strategy.InDoubt {
		sure = healed.Add(r.Engines.InDoubt())
		if late := sure.Add(settleRound); late.After(deadline) {
			deadline = late // a broker that asks seldom
		}
	}
	var sent []string // the markers' order numbers
	isMarker := map[string]bool{}
	for {
		left, err := missing(ctx, p)
		if err != nil {
			return "", err
		}
		held := 0 // orders without points that are not markers
		for no := range left {
			if !isMarker[no] {
				held++
			}
		}
		if held == 0 {
			return "", r.await(ctx, p, settleRound) // the markers count, too
		}
		waiting, err := unsent(ctx, p)
		if err != nil {
			return "", err
		}
		flowing := len(sent) >= markers
		for _, no := range sent[max(0, len(sent)-markers):] {
			if _, late := left[no]; late {
				flowing = false
			}
		}
		if flowing && waiting == 0 && time.Now().After(sure) {
			return "", nil
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("%v after %v: %d orders without points, %d event records not sent", errNotSettled, deadline.Sub(healed), held, waiting), nil
		}
		if out, no := mark(ctx, p); out == Created {
			sent, isMarker[no] = append(sent, no), true
		} else if no != "" {
			isMarker[no] = true
		}
		if !sleepUntil(ctx, time.Now().Add(markerPause)) {
			return "", context.Cause(ctx)
		}
	}
}

// recovery is the time from the end of the fault until orders are accepted again and the last of those committed before
// is credited. It is not known when nothing was accepted any more.
func recovery(samples []sample, orders map[string]orderRow, rec records, w window) (took time.Duration, known bool) {
	last, known := acceptedAgain(samples, orders, w)
	if !known {
		return 0, false
	}
	for no, d := range rec.first() {
		o, known := orders[no]
		if known && o.UserID != markerUser && o.CreatedAt.Before(w.to) && d.handled.After(last) {
			last = d.handled
		}
	}
	return last.Sub(w.to), true
}

// acceptedAgain is when orders were accepted again: at the end of the fault if no call failed that came after it, else
// at the first success of a call that came after the last that failed. When the load ended before, the markers tell,
// whose orders are in the table.
func acceptedAgain(samples []sample, orders map[string]orderRow, w window) (at time.Time, known bool) {
	var failed time.Time // when the last call came that failed
	for _, s := range samples {
		if s.outcome != Created && s.intended.After(w.to) && s.intended.After(failed) {
			failed = s.intended
		}
	}
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if failed.IsZero() {
		// No call came while the service was away, or it was not away at all.
		earlier(w.back)
		failed = w.to
	}
	for _, s := range samples {
		if s.outcome == Created && s.intended.After(failed) {
			earlier(s.done)
		}
	}
	if at.IsZero() {
		for _, o := range orders {
			if o.CreatedAt.After(failed) {
				earlier(o.CreatedAt)
			}
		}
	}
	return at, !at.IsZero()
}

// timeline counts, by the time that has passed since the load began, the orders that were accepted, committed (as their
// rows say, accepted or not) and credited.
func (res *FaultResult) timeline(samples []sample, rec records, orders map[string]orderRow, began time.Time) {
	res.TimelineStepMS = ms(timelineStep)
	count := func(bins []int, at time.Time) []int {
		i := int(at.Sub(began) / timelineStep)
		if i < 0 {
			return bins
		}
		for len(bins) <= i {
			bins = append(bins, 0)
		}
		bins[i]++
		return bins
	}
	for _, s := range samples {
		if s.outcome == Created {
			res.Accepted = count(res.Accepted, s.done)
		}
	}
	for _, o := range orders {
		if o.UserID != markerUser && !o.CreatedAt.Before(began) {
			res.Committed = count(res.Committed, o.CreatedAt)
		}
	}
	for no, d := range rec.first() {
		if o, known := orders[no]; known && o.UserID != markerUser && !o.CreatedAt.Before(began) {
			res.Credited = count(res.Credited, d.handled)
		}
	}
}
