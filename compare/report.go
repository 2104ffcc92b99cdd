package compare

import (
	"math"
	"time"
)

// SchemaVersion is the version of report.json. It is raised when a field changes its meaning or goes.
const SchemaVersion = 1

// Report is everything that was measured. Durations are milliseconds unless their name says otherwise; docs/comparison.md
// describes every field.
type Report struct {
	Schema  int       `json:"schema"`
	Version string    `json:"version"`
	Command string    `json:"command"`
	Engines string    `json:"engines"`
	Seed    uint64    `json:"seed"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	// Partial is why the run did not come to its end; empty when it did.
	Partial    string      `json:"partial,omitempty"`
	Conditions []Condition `json:"conditions"`
	// Strategies are the columns, in order; those with NotRun were left out.
	Strategies []StrategyReport `json:"strategies"`
	// Metrics are the rows of the table without faults.
	Metrics []Metric `json:"metrics"`
	// Judged is what the databases say about the rounds without faults, by strategy.
	Judged map[string]Judgement `json:"judged"`
	// NotJudged is why a strategy that was measured without faults is not in Judged.
	NotJudged map[string]string `json:"not_judged,omitempty"`
	Faults    []FaultReport     `json:"faults"`
	// Findings are what can be said, in words.
	Findings []Finding `json:"findings"`
	// Rounds are the raw samples of the rounds without faults.
	Rounds []Round `json:"rounds"`
}

// StrategyReport is one strategy.
type StrategyReport struct {
	Name   string `json:"name"`
	About  string `json:"about"`
	NotRun string `json:"not_run,omitempty"`
}

// ran names the strategies that were measured.
func (r *Report) ran() (names []string) {
	for _, s := range r.Strategies {
		if s.NotRun == "" {
			names = append(names, s.Name)
		}
	}
	return names
}

// rounds is how many turns the strategy with the fewest has had.
func (r *Report) rounds() (fewest int) {
	turns := map[string]int{}
	for _, round := range r.Rounds {
		turns[round.Strategy]++
	}
	for i, name := range r.ran() {
		if i == 0 || turns[name] < fewest {
			fewest = turns[name]
		}
	}
	return fewest
}

// Empty tells that nothing was measured.
func (r *Report) Empty() bool {
	for _, f := range r.Faults {
		if len(f.Results) > 0 {
			return false
		}
	}
	return len(r.Rounds) == 0
}

// Metric is one row of the table.
type Metric struct {
	Key   string `json:"key"`
	Title string `json:"title"`
	Unit  string `json:"unit"`
	About string `json:"about"`
	// LowerIsBetter tells what a winner is.
	LowerIsBetter bool `json:"lower_is_better"`
	// Values are the summaries by strategy; a strategy without any was not measured.
	Values map[string]*Summary `json:"values"`
	// Best is the strategy with the best median. It wins over those in Beats; from those in Ties it cannot be told apart.
	Best  string   `json:"best,omitempty"`
	Beats []string `json:"beats,omitempty"`
	Ties  []string `json:"ties,omitempty"`
}

// wins tells whether the metric has one winner over all others.
func (m Metric) wins(strategy string) bool {
	return m.Best == strategy && len(m.Beats) > 0 && len(m.Ties) == 0
}

// Finding is something that can be said.
type Finding struct {
	// Kind is loss, unsettled, not-judged, wrong, duplicates, no-loss, luck, difference, no-difference or few-rounds.
	Kind string `json:"kind"`
	// Metric is the key of the metric of a difference, Fault the fault of the rest.
	Metric   string `json:"metric,omitempty"`
	Fault    Fault  `json:"fault,omitempty"`
	Strategy string `json:"strategy,omitempty"`
	Text     string `json:"text"`
}

// Round is one strategy's turn without faults.
type Round struct {
	Strategy string    `json:"strategy"`
	Round    int       `json:"round"`
	Began    time.Time `json:"began"`
	Seconds  float64   `json:"seconds"`
	// Used is what the service used in this round, up to the last credit.
	Used Counters `json:"used"`
	// Settled tells that every order was credited before the next turn began.
	Settled bool    `json:"settled"`
	Samples Samples `json:"samples"`
}

// Samples are the calls of one turn, column by column: the i-th values belong to the same order. -1 is a time that is not
// known.
type Samples struct {
	// AtMS is when the call was intended, from the beginning of the turn.
	AtMS      []float64 `json:"at_ms"`
	LatencyMS []float64 `json:"latency_ms"`
	Outcome   []Outcome `json:"outcome"`
	// BrokerMS and CreditMS are from the commit to the broker's store and to the credit.
	BrokerMS []float64 `json:"commit_to_broker_ms"`
	CreditMS []float64 `json:"commit_to_credit_ms"`
}

// column is one value for the orders that were created, those that are not known left out.
func (s Samples) column(values []float64) (out []float64) {
	for i, v := range values {
		if s.Outcome[i] == Created && v >= 0 {
			out = append(out, v)
		}
	}
	return out
}

func (s Samples) created() (n int) {
	for _, o := range s.Outcome {
		if o == Created {
			n++
		}
	}
	return n
}

// FaultReport is one fault for every strategy.
type FaultReport struct {
	Fault Fault  `json:"fault"`
	About string `json:"about"`
	// NotRun is why it was not made.
	NotRun string `json:"not_run,omitempty"`
	// Rate is how many orders came in per second for each strategy.
	Rate    float64       `json:"rate"`
	Results []FaultResult `json:"results,omitempty"`
}

// FaultResult is what one strategy made of a fault.
type FaultResult struct {
	Strategy string `json:"strategy"`
	// FromMS and ToMS are the window of the fault, from the beginning of the load.
	FromMS float64 `json:"from_ms"`
	ToMS   float64 `json:"to_ms"`
	// Saw counts what the callers saw.
	Saw map[Outcome]int `json:"saw"`
	// P99MS and MaxMS are the callers' latency over the whole load, from the intended start; -1 when there were no calls.
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"`
	// RecoverySeconds is from the end of the fault until orders were accepted again and every order committed before was
	// credited, those that are lost left out; -1 when that was not seen.
	RecoverySeconds float64 `json:"recovery_seconds"`
	// Judged is what the databases say; nil with the reason in NotJudged when the run ended before they could be asked.
	Judged    *Judgement `json:"judged,omitempty"`
	NotJudged string     `json:"not_judged,omitempty"`
	// Timeline counts by intervals of TimelineStep from the beginning of the load.
	TimelineStepMS float64 `json:"timeline_step_ms"`
	Accepted       []int   `json:"accepted"`
	Committed      []int   `json:"committed"`
	Credited       []int   `json:"credited"`
	Samples        Samples `json:"samples"`
}

// metricDef makes a metric of a round; NaN where there is nothing.
type metricDef struct {
	Metric
	of func(r Round) float64
}

func metricDefs() []metricDef {
	api := func(q float64) func(Round) float64 {
		return func(r Round) float64 { return quantile(r.Samples.column(r.Samples.LatencyMS), q) }
	}
	broker := func(q float64) func(Round) float64 {
		return func(r Round) float64 { return quantile(r.Samples.column(r.Samples.BrokerMS), q) }
	}
	credit := func(q float64) func(Round) float64 {
		return func(r Round) float64 { return quantile(r.Samples.column(r.Samples.CreditMS), q) }
	}
	per := func(scale float64, of func(c Counters) float64) func(Round) float64 {
		return func(r Round) float64 {
			if n := r.Samples.created(); n > 0 && r.Settled {
				return scale * of(r.Used) / float64(n)
			}
			return math.NaN()
		}
	}
	return []metricDef{
		{Metric{Key: "orders_per_second", Title: "orders", Unit: "1/s", About: "orders answered 201, per second"}, func(r Round) float64 { return float64(r.Samples.created()) / r.Seconds }},
		{Metric{Key: "api_p50", Title: "API latency p50", Unit: "ms", LowerIsBetter: true, About: "what the caller of POST /api/v1/orders waits, from the intended start"}, api(0.50)},
		{Metric{Key: "api_p95", Title: "API latency p95", Unit: "ms", LowerIsBetter: true, About: "what the caller waits, from the intended start"}, api(0.95)},
		{Metric{Key: "api_p99", Title: "API latency p99", Unit: "ms", LowerIsBetter: true, About: "what the caller waits, from the intended start"}, api(0.99)},
		{Metric{Key: "broker_p50", Title: "commit to broker p50", Unit: "ms", LowerIsBetter: true, About: "from the confirmed COMMIT to the broker's store time, which has whole milliseconds"}, broker(0.50)},
		{Metric{Key: "broker_p99", Title: "commit to broker p99", Unit: "ms", LowerIsBetter: true, About: "from the confirmed COMMIT to the broker's store time"}, broker(0.99)},
		{Metric{Key: "credit_p50", Title: "commit to credit p50", Unit: "ms", LowerIsBetter: true, About: "from the confirmed COMMIT of the order to that of its points"}, credit(0.50)},
		{Metric{Key: "credit_p99", Title: "commit to credit p99", Unit: "ms", LowerIsBetter: true, About: "from the confirmed COMMIT of the order to that of its points"}, credit(0.99)},
		{Metric{Key: "sql_per_order", Title: "SQL statements", Unit: "per order", LowerIsBetter: true, About: "in the order database: API, relay and check-backs; BEGIN and COMMIT count"}, per(1, func(c Counters) float64 { return float64(c.OrderSQL) })},
		{Metric{Key: "messages_per_order", Title: "broker messages", Unit: "per order", LowerIsBetter: true, About: "messages given to the broker and decisions about half messages, counted on the wire; those are not acknowledged"}, per(1, func(c Counters) float64 { return float64(c.BrokerSends + c.BrokerEnds) })},
		{Metric{Key: "requests_per_order", Title: "broker requests", Unit: "per order", LowerIsBetter: true, About: "the requests that carried them: a batch is one"}, per(1, func(c Counters) float64 { return float64(c.BrokerRequests) })},
		{Metric{Key: "cpu_per_1000", Title: "CPU", Unit: "s per 1,000 orders", LowerIsBetter: true, About: "user and system time of the service's process: API, relay, consumer, and SQLite where it is the database; neither broker nor MySQL nor the caller"}, per(1000, func(c Counters) float64 { return c.CPUSeconds })},
	}
}

// bytesMetric is measured once over all rounds.
func bytesMetric() Metric {
	return Metric{Key: "db_bytes_per_order", Title: "order database", Unit: "bytes per order", LowerIsBetter: true, About: "growth of the order database over all rounds, indexes included; MySQL grows in whole extents of 64 KiB to 4 MiB"}
}

// sumUp fills Metrics and Findings from the rounds and the faults.
func (r *Report) sumUp(bytesPerOrder map[string]float64) {
	names := r.ran()
	r.Metrics = nil
	add := func(m Metric, value func(strategy string) *Summary) {
		m.Values = map[string]*Summary{}
		for _, n := range names {
			if v := value(n); v != nil {
				m.Values[n] = v
			}
		}
		if len(m.Values) == 0 {
			return
		}
		m.Best, m.Beats, m.Ties = ranking(names, m.Values, m.LowerIsBetter)
		r.Metrics = append(r.Metrics, m)
	}
	for _, def := range metricDefs() {
		add(def.Metric, func(strategy string) *Summary {
			var values []float64
			for _, round := range r.Rounds {
				if round.Strategy == strategy {
					values = append(values, def.of(round))
				}
			}
			return summarize(values)
		})
	}
	add(bytesMetric(), func(strategy string) *Summary {
		if v, ok := bytesPerOrder[strategy]; ok {
			return summarize([]float64{v})
		}
		return nil
	})
	r.Findings = findings(r)
}
