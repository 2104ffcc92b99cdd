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
	outcomes *prometheus.CounterVec
	lateAcks prometheus.Counter
	half     prometheus.Histogram
	local    prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 14)
	m := &metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "halfbox_txmsg_publish_total", Help: "Events published as transactional messages, by outcome.",
		}, []string{"outcome"}),
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
	for _, o := range []string{outcomeCommitted, outcomeRolledBack, outcomeUnknown, outcomeUnavailable, outcomeVoided, outcomeFallback} {
		m.outcomes.WithLabelValues(o)
	}
	for _, c := range []prometheus.Collector{m.outcomes, m.lateAcks, m.half, m.local} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("txmsg: %w", err)
		}
	}
	return m, nil
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return outcomeCommitted
	case errors.Is(err, halfbox.ErrUnknown):
		return outcomeUnknown
	case errors.Is(err, halfbox.ErrUnavailable):
		return outcomeUnavailable
	}
	return outcomeRolledBack
}
