package compare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Config makes a run.
type Config struct {
	Engines    Engines
	Strategies []Strategy
	Faults     []Fault
	// Orders is the number of orders of one turn, Rounds how many turns each strategy has, Warmup the orders before the
	// first, which are not measured.
	Orders, Rounds, Warmup int
	// Rate in orders per second makes an open loop; 0 makes a closed one of Concurrency callers.
	Rate        float64
	Concurrency int
	// FaultRate in orders per second is what each strategy gets under a fault, always as an open loop. 0 chooses half of
	// what the slowest strategy did without faults, between 10 and 100.
	FaultRate float64
	// Seed plans the orders and the order of the turns.
	Seed uint64
	// Command and Version are for the report.
	Command, Version string
	// Progress is told how many of total steps are done and what comes next. May be nil. Called by one goroutine.
	Progress func(done, total int, next string)
}

// Validate reports what is wrong.
func (c Config) Validate() error {
	switch {
	case len(c.Strategies) == 0:
		return errors.New("no strategy to compare")
	case c.Orders < 1 || c.Rounds < 1 || c.Warmup < 0:
		return errors.New("orders and rounds must be at least 1, warm-up not negative")
	case c.Orders > mostOrders || c.Rounds > mostOrders || c.Warmup > mostOrders:
		return fmt.Errorf("orders, rounds and warm-up must be at most %d each", mostOrders)
	// Written so that what is no number is refused, too.
	case c.Rate != 0 && !(c.Rate > 0 && c.Rate <= mostRate):
		return fmt.Errorf("the rate must be more than 0 and at most %d orders per second", mostRate)
	case c.FaultRate != 0 && !(c.FaultRate >= 1 && c.FaultRate <= mostRate):
		return fmt.Errorf("the rate under a fault must be from 1 to %d orders per second: a fault that no order meets shows nothing", mostRate)
	case c.Rate == 0 && (c.Concurrency < 1 || c.Concurrency > mostRate):
		return fmt.Errorf("concurrency must be from 1 to %d", mostRate)
	}
	return nil
}

// What a run can hold in memory.
const (
	mostOrders = 1_000_000
	mostRate   = 10_000
)

// run is one run under way.
type run struct {
	Config
	report   *Report
	done     int
	bytes    map[string]float64
	leftover error // what could not be removed
}

// Run measures. The report holds what was measured when an error comes back, too, and says so; it is nil only when
// nothing could begin. Everything that was made is removed before Run returns, also when ctx ends.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &run{Config: cfg, bytes: map[string]float64{}, report: &Report{
		Schema: SchemaVersion, Version: cfg.Version, Command: cfg.Command, Engines: cfg.Engines.Name(), Seed: cfg.Seed,
		Began: time.Now(), Conditions: cfg.Engines.Conditions(ctx), Judged: map[string]Judgement{}, NotJudged: map[string]string{},
	}}
	var strategies []Strategy
	for _, s := range cfg.Strategies {
		line := StrategyReport{Name: s.Name, About: s.About}
		if s.NeedsMySQL != "" && !cfg.Engines.MySQL() {
			line.NotRun = s.NeedsMySQL
		} else {
			strategies = append(strategies, s)
		}
		r.report.Strategies = append(r.report.Strategies, line)
	}
	r.Strategies = strategies
	err := r.all(ctx)
	switch {
	case ctx.Err() != nil:
		r.report.Partial = "interrupted"
		err = fmt.Errorf("interrupted: %w", context.Cause(ctx))
	case err != nil:
		r.report.Partial = err.Error()
	}
	r.report.Ended = time.Now()
	r.report.sumUp(r.bytes)
	return r.report, errors.Join(err, r.leftover)
}

// all does one fault after the other.
func (r *run) all(ctx context.Context) error {
	for i, f := range r.Faults {
		var err error
		switch reason := r.Engines.Lacks(f); {
		case f == FaultNone:
			err = r.rounds(ctx)
		case reason != "":
			r.report.Faults = append(r.report.Faults, FaultReport{Fault: f, About: f.About(), NotRun: reason})
			r.step("")
		default:
			err = r.fault(ctx, f)
		}
		if err != nil {
			r.skip(r.Faults[i:])
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	r.tell("writing the report")
	return nil
}

// skip notes the faults that the run did not come to: those of which it has nothing.
func (r *run) skip(faults []Fault) {
	for _, f := range faults {
		begun := slices.ContainsFunc(r.report.Faults, func(had FaultReport) bool { return had.Fault == f })
		if f != FaultNone && !begun {
			r.report.Faults = append(r.report.Faults, FaultReport{Fault: f, About: f.About(), NotRun: "the run ended before it"})
		}
	}
}

// total is the number of steps.
func (r *run) total() (n int) {
	for _, f := range r.Faults {
		if f == FaultNone {
			n += r.Rounds * len(r.Strategies)
		} else {
			n += max(1, len(r.Strategies)) // they run side by side, but take longer than a turn
		}
	}
	return n
}

func (r *run) tell(next string) {
	if r.Progress != nil {
		r.Progress(r.done, r.total(), next)
	}
}

func (r *run) step(next string) {
	r.done++
	r.tell(next)
}

// place is a strategy where it runs.
type place struct {
	Site
	strategy Strategy
	caller   *caller
}

// open makes a place for each strategy at the same time. What was opened is closed when one fails.
func (r *run) open(ctx context.Context, f Fault) ([]*place, error) {
	places := make([]*place, len(r.Strategies))
	errs := make([]error, len(r.Strategies))
	var opening sync.WaitGroup
	for i, s := range r.Strategies {
		opening.Go(func() {
			site, err := r.Engines.Open(ctx, s, f)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.Name, err)
				return
			}
			places[i] = &place{Site: site, strategy: s, caller: newCaller(site.URL(), s.Delivery)}
		})
	}
	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		r.closeAll(ctx, places)
		return nil, err
	}
	return places, nil
}

// closeAll removes the places. What cannot be removed does not end the run, but is reported.
func (r *run) closeAll(ctx context.Context, places []*place) {
	r.tell("removing what was made")
	errs := make([]error, len(places))
	var closing sync.WaitGroup
	for i, p := range places {
		if p == nil {
			continue
		}
		closing.Go(func() {
			p.caller.close()
			errs[i] = p.Close(context.WithoutCancel(ctx))
		})
	}
	closing.Wait()
	r.leftover = errors.Join(r.leftover, errors.Join(errs...))
}

// turns is the order in which the strategies take their turns, so that a machine that gets slower or busier hurts all
// alike: in every n rounds each of the n comes once at every place, and who follows whom is drawn anew by the seed.
func turns(seed uint64, round, n int) []int {
	order := rand.New(rand.NewPCG(seed, uint64(round/n))).Perm(n)
	first := round % n
	return slices.Concat(order[first:], order[:first])
}
