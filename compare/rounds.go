package compare

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// settleRound is how long a round without faults waits for its last credit.
const settleRound = 30 * time.Second

// rounds measures every strategy in turn, without faults.
func (r *run) rounds(ctx context.Context) error {
	r.tell("starting the services")
	places, err := r.open(ctx, FaultNone)
	if err != nil {
		return err
	}
	defer r.closeAll(ctx, places)
	before := make([]int64, len(places))
	for i, p := range places {
		if err := r.warmUp(ctx, p); err != nil {
			return err
		}
		if before[i], err = databaseBytes(ctx, p.Order()); err != nil {
			return err
		}
	}
	made := make([]int, len(places))
	if err := r.takeTurns(ctx, places, made); err != nil {
		r.judgeEarly(ctx, places, made)
		return err
	}
	return r.judgeRounds(ctx, places, before, made)
}

// takeTurns adds up in made how many orders each place has accepted in the turns that came to their end.
func (r *run) takeTurns(ctx context.Context, places []*place, made []int) error {
	for round := range r.Rounds {
		for _, i := range turns(r.Seed, round, len(places)) {
			p := places[i]
			r.tell(fmt.Sprintf("round %d of %d: %s", round+1, r.Rounds, p.strategy.Name))
			turn, err := r.turn(ctx, p, round)
			if err != nil {
				return err
			}
			made[i] += turn.Samples.created()
			r.report.Rounds = append(r.report.Rounds, turn)
			r.step("")
		}
	}
	return nil
}

// judgeRounds asks the databases after the last round.
func (r *run) judgeRounds(ctx context.Context, places []*place, before []int64, made []int) error {
	for i, p := range places {
		after, err := databaseBytes(ctx, p.Order())
		if err != nil {
			return err
		}
		if made[i] > 0 {
			r.bytes[p.strategy.Name] = float64(after-before[i]) / float64(made[i])
		}
		unsettled, err := r.settle(ctx, p, time.Now())
		if err != nil {
			r.judgeEarly(ctx, places[i:], made[i:])
			return err
		}
		j, err := judge(ctx, p)
		if err != nil {
			return err
		}
		j.Unsettled = unsettled
		r.report.Judged[p.strategy.Name] = j
	}
	return nil
}

// The judgement of a run that has ended early must not keep anybody waiting for long.
const (
	earlyWait = 5 * time.Second
	earlyMost = 15 * time.Second
)

// judgeEarly judges what was measured before the run ended early. Only where every order has its points can anything be
// said: what is missing may be on its way.
func (r *run) judgeEarly(ctx context.Context, places []*place, made []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), earlyMost)
	defer cancel()
	r.tell("judging what was measured")
	judged := make([]Judgement, len(places))
	whyNot := make([]string, len(places))
	var judging sync.WaitGroup
	for i, p := range places {
		judging.Go(func() { judged[i], whyNot[i] = r.judgeIfWhole(ctx, p) })
	}
	judging.Wait()
	for i, p := range places {
		switch name := p.strategy.Name; {
		case made[i] == 0: // not measured at all
		case whyNot[i] != "":
			r.report.NotJudged[name] = whyNot[i]
		default:
			r.report.Judged[name] = judged[i]
		}
	}
}

func (r *run) judgeIfWhole(ctx context.Context, p *place) (j Judgement, whyNot string) {
	if err := r.await(ctx, p, earlyWait); err != nil {
		return j, err.Error()
	}
	left, err := missing(ctx, p)
	if err != nil {
		return j, err.Error()
	}
	if len(left) > 0 {
		return j, fmt.Sprintf("the run ended while %d orders were without points", len(left))
	}
	if j, err = judge(ctx, p); err != nil {
		return j, err.Error()
	}
	return j, ""
}

// openWarmup is how many callers warm up for an open loop, which will need several connections.
const openWarmup = 16

// warmUp opens connections, fills caches and lets the consumer find its queues. It is not measured.
func (r *run) warmUp(ctx context.Context, p *place) error {
	callers := r.Concurrency
	if r.Rate > 0 {
		callers = openWarmup
	}
	p.caller.closedLoop(ctx, workload(r.Seed^0xF00D, r.Warmup, 0), callers)
	return r.await(ctx, p, settleRound)
}

// await waits until every order has its points, at most for a time; that some have none then is not an error.
func (r *run) await(ctx context.Context, p *place, most time.Duration) error {
	deadline := time.Now().Add(most)
	for {
		left, err := missing(ctx, p)
		if err != nil || len(left) == 0 || time.Now().After(deadline) {
			return err
		}
		// Looking costs the machine something, so it is not done all the time.
		if !sleepUntil(ctx, time.Now().Add(50*time.Millisecond)) {
			return context.Cause(ctx)
		}
	}
}

// turn is one strategy's turn of one round. The counters are read before the load and after the last credit.
func (r *run) turn(ctx context.Context, p *place, round int) (Round, error) {
	before, err := p.Counters(ctx)
	if err != nil {
		return Round{}, err
	}
	calls := workload(r.Seed+uint64(round), r.Orders, r.Rate)
	began := time.Now()
	var samples []sample
	if r.Rate > 0 {
		samples = p.caller.openLoop(ctx, calls)
	} else {
		samples = p.caller.closedLoop(ctx, calls, r.Concurrency)
	}
	took := time.Since(began)
	if ctx.Err() != nil {
		return Round{}, context.Cause(ctx)
	}
	settled, err := r.credited(ctx, p, samples)
	if err != nil {
		return Round{}, err
	}
	after, err := p.Counters(ctx)
	if err != nil {
		return Round{}, err
	}
	rec, err := readRecords(p.Records())
	if err != nil {
		return Round{}, err
	}
	return Round{
		Strategy: p.strategy.Name, Round: round + 1, Began: began, Seconds: took.Seconds(), Used: after.minus(before),
		Settled: settled, Samples: columns(samples, rec, began),
	}, nil
}

// credited waits until the last of the samples' orders is credited and the relay has marked what it sent, so that the
// counters hold all the work; false when the wait was too long or an order is lost. The wait ends early when nothing has moved for a while and nothing is to be sent.
func (r *run) credited(ctx context.Context, p *place, samples []sample) (bool, error) {
	wanted := 0
	for _, s := range samples {
		if s.outcome == Created {
			wanted++
		}
	}
	last, lastChange := -1, time.Now()
	for deadline := time.Now().Add(settleRound); ; {
		rec, err := readRecords(p.Records())
		if err != nil {
			return false, err
		}
		first := rec.first()
		have := 0
		for _, s := range samples {
			if _, ok := first[s.orderNo]; ok && s.outcome == Created {
				have++
			}
		}
		if have != last {
			last, lastChange = have, time.Now()
		}
		waiting, err := unsent(ctx, p)
		if err != nil {
			return false, err
		}
		if have >= wanted && waiting == 0 {
			return true, nil
		}
		if time.Now().After(deadline) || waiting == 0 && !p.strategy.InDoubt && time.Since(lastChange) > 3*time.Second {
			return false, nil
		}
		if !sleepUntil(ctx, time.Now().Add(50*time.Millisecond)) {
			return false, context.Cause(ctx)
		}
	}
}

// columns joins what the caller saw with what the service wrote down.
func columns(samples []sample, rec records, began time.Time) (c Samples) {
	first := rec.first()
	for _, s := range samples {
		broker, credit := -1.0, -1.0
		committed, known := rec.committed[s.msgID]
		if d, ok := first[s.orderNo]; ok && known && s.msgID != "" {
			// The broker's clock has whole milliseconds, and cuts them off.
			broker, credit = max(0, ms(d.stored.Sub(committed))), max(0, ms(d.handled.Sub(committed)))
		}
		c.AtMS = append(c.AtMS, ms(s.intended.Sub(began)))
		c.LatencyMS = append(c.LatencyMS, ms(s.latency()))
		c.Outcome = append(c.Outcome, s.outcome)
		c.BrokerMS = append(c.BrokerMS, broker)
		c.CreditMS = append(c.CreditMS, credit)
	}
	return c
}
