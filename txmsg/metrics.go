package txmsg

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/halfbox/halfbox"
)

// The outcomes of PublishInTx, a label of the metric. voided counts attempts that were followed by another.
const (
	outcomeCommitted   = "committed"
	outcomeRolledBack  = "rolled_back"
	outcomeUnknown     = "unknown"
	outcomeUnavailable = "unavailable"
	outcomeVoided      = "voided"
	outcomeFallback    = "fallback"
)

type metrics struct {
	committed, rolledBack, unknown, unavailable, voided, fallback prometheus.Counter

	lateAcks prometheus.Counter
	half     prometheus.Histogram
	local    prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 14)
	outcomes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "halfbox_txmsg_publish_total", Help: "Events published as transactional messages, by outcome.",
	}, []string{"outcome"})
	m := &metrics{
		committed: outcomes.WithLabelValues(outcomeCommitted), rolledBack: outcomes.WithLabelValues(outcomeRolledBack),
		unknown: outcomes.WithLabelValues(outcomeUnknown), unavailable: outcomes.WithLabelValues(outcomeUnavailable),
		voided: outcomes.WithLabelValues(outcomeVoided), fallback: outcomes.WithLabelValues(outcomeFallback),
		lateAcks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "halfbox_txmsg_late_acks_total", Help: "Half messages acknowledged after their attempt was abandoned.",
		}),
		half: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "halfbox_txmsg_half_seconds", Help: "Time from sending a half message to its acknowledgement.", Buckets: buckets,
		}),
		local: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "halfbox_txmsg_local_seconds", Help: "Duration of local transactions, repetitions included.", Buckets: buckets,
		}),
	}
	for _, c := range []prometheus.Collector{outcomes, m.lateAcks, m.half, m.local} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("txmsg: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) outcome(err error) prometheus.Counter {
	switch {
	case err == nil:
		return m.committed
	case errors.Is(err, halfbox.ErrUnknown):
		return m.unknown
	case errors.Is(err, halfbox.ErrUnavailable):
		return m.unavailable
	}
	return m.rolledBack
}
