package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/halfbox/halfbox"
)

const metricPrefix = "halfbox_outbox_"

// register adds every collector to reg, which may be nil.
func register(reg prometheus.Registerer, cs ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	for i, c := range cs {
		if err := reg.Register(c); err != nil {
			for _, done := range cs[:i] {
				reg.Unregister(done)
			}
			return fmt.Errorf("outbox: register metrics: %w", err)
		}
	}
	return nil
}

type writerMetrics struct {
	writes *prometheus.CounterVec
}

func newWriterMetrics(reg prometheus.Registerer) (*writerMetrics, error) {
	m := &writerMetrics{writes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: metricPrefix + "writes_total", Help: "Transactions that wrote an event record, by outcome.",
	}, []string{"outcome"})}
	for _, outcome := range []string{"committed", "rolled_back", "refused", "unknown"} {
		m.writes.WithLabelValues(outcome)
	}
	return m, register(reg, m.writes)
}

func (m *writerMetrics) observe(err error) {
	outcome := "committed"
	switch {
	case errors.Is(err, ErrBacklog):
		outcome = "refused"
	case errors.Is(err, halfbox.ErrUnknown):
		outcome = "unknown"
	case err != nil:
		outcome = "rolled_back"
	}
	m.writes.WithLabelValues(outcome).Inc()
}

// relayMetrics are the series of one relay. Those of the relay's own sinks exist from the start.
type relayMetrics struct {
	backlog      *prometheus.GaugeVec
	oldest       *prometheus.GaugeVec
	overdue      prometheus.Gauge
	attempts     *prometheus.CounterVec
	misses       *prometheus.CounterVec
	reclaimed    *prometheus.CounterVec
	dead         *prometheus.CounterVec
	purged       prometheus.Counter
	breaker      *prometheus.GaugeVec
	blocked      *prometheus.GaugeVec
	claimSeconds *prometheus.HistogramVec
	sendSeconds  *prometheus.HistogramVec

	mu    sync.Mutex
	known map[string]bool // sinks whose series exist
}

func newRelayMetrics(reg prometheus.Registerer, sinks []Sink) (*relayMetrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}, labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: metricPrefix + name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
		}, []string{"sink"})
	}
	m := &relayMetrics{
		backlog: gauge("backlog", "Event records that are not done, by state.", "sink", "status"),
		oldest:  gauge("oldest_unsent_age_seconds", "Age of the oldest record in WAIT or SENDING.", "sink"),
		overdue: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: metricPrefix + "overdue_leases", Help: "Records in SENDING whose lease has run out.",
		}),
		attempts:  counter("attempts_total", "Events handed to a sink, by result.", "sink", "result"),
		misses:    counter("lease_misses_total", "Rows a write-back did not find under its claim_owner. Should stay 0.", "sink", "op"),
		reclaimed: counter("reclaimed_total", "Records put back because their lease ran out.", "sink"),
		dead:      counter("dead_total", "Records that became dead letters, by reason.", "sink", "reason"),
		purged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricPrefix + "purged_total", Help: "Records in SUCCESS that were deleted after the retention.",
		}),
		breaker:      gauge("breaker_state", "0 closed, 1 half-open, 2 open.", "sink"),
		blocked:      gauge("blocked_keys", "Keys of an ordered sink that a dead letter holds, 1000 at most. 0 for other sinks.", "sink"),
		claimSeconds: seconds("claim_duration_seconds", "Time of one claim."),
		sendSeconds:  seconds("send_duration_seconds", "Time of one send."),
		known:        map[string]bool{},
	}
	for _, s := range sinks {
		m.sink(s.Name())
	}
	return m, register(reg, m.backlog, m.oldest, m.overdue, m.attempts, m.misses, m.reclaimed, m.dead, m.purged, m.breaker, m.blocked, m.claimSeconds, m.sendSeconds)
}

// sinkMetrics are the series of one sink.
type sinkMetrics struct {
	name         string
	all          *relayMetrics
	reclaimed    prometheus.Counter
	breaker      prometheus.Gauge
	claimSeconds prometheus.Observer
	sendSeconds  prometheus.Observer
}

func (m *sinkMetrics) attempts(result class) prometheus.Counter {
	return m.all.attempts.WithLabelValues(m.name, string(result))
}

func (m *sinkMetrics) misses(op string) prometheus.Counter {
	return m.all.misses.WithLabelValues(m.name, op)
}

func (m *sinkMetrics) dead(reason string) prometheus.Counter {
	return m.all.dead.WithLabelValues(m.name, reason)
}

func (m *relayMetrics) sink(name string) *sinkMetrics {
	s := &sinkMetrics{
		name: name, all: m, reclaimed: m.reclaimed.WithLabelValues(name), breaker: m.breaker.WithLabelValues(name),
		claimSeconds: m.claimSeconds.WithLabelValues(name), sendSeconds: m.sendSeconds.WithLabelValues(name),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[name] {
		return s
	}
	m.known[name] = true
	for _, c := range classes() {
		s.attempts(c)
	}
	for _, op := range []string{"renew", "mark", "retry", "put-off", "fail", "release"} {
		s.misses(op)
	}
	for _, reason := range reasons() {
		s.dead(reason)
	}
	m.observe(Snapshot{Counts: []Count{{Sink: name, Status: StatusWait}, {Sink: name, Status: StatusSending}, {Sink: name, Status: StatusFail}}})
	m.oldest.WithLabelValues(name)
	m.blocked.WithLabelValues(name)
	return s
}

func (m *relayMetrics) observe(st Snapshot) {
	for _, c := range st.Counts {
		m.backlog.WithLabelValues(c.Sink, string(c.Status)).Set(float64(c.N))
	}
	m.overdue.Set(float64(st.Overdue))
}

func (r *Relay) runStats(ctx context.Context) {
	every(ctx, r.cfg.Logger, "stats", r.cfg.StatsInterval, r.statsOnce)
}

// statsOnce sets the gauges that the database knows. What is no longer there becomes 0.
func (r *Relay) statsOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StatementTimeout)
	defer cancel()
	st, err := r.store.stats(ctx, sqlBacklog)
	if err != nil {
		return err
	}
	found := map[Count]bool{}
	for _, c := range st.Counts {
		r.metrics.sink(c.Sink)
		found[Count{Sink: c.Sink, Status: c.Status}] = true
	}
	r.metrics.mu.Lock()
	defer r.metrics.mu.Unlock()
	for sink := range r.metrics.known {
		for _, status := range []Status{StatusWait, StatusSending, StatusFail} {
			if !found[Count{Sink: sink, Status: status}] {
				st.Counts = append(st.Counts, Count{Sink: sink, Status: status})
			}
		}
		r.metrics.oldest.WithLabelValues(sink).Set(st.OldestUnsent[sink].Seconds())
	}
	r.metrics.observe(st)
	return r.countBlocked(ctx)
}

// countBlocked counts the keys that a dead letter holds.
func (r *Relay) countBlocked(ctx context.Context) error {
	for sink, policy := range r.cfg.Ordered {
		if policy != HeadOfLineBlock {
			continue
		}
		n, err := r.store.countBlocked(ctx, sink)
		if err != nil {
			return fmt.Errorf("count blocked keys: %w", err)
		}
		r.metrics.blocked.WithLabelValues(sink).Set(float64(n))
	}
	return nil
}
