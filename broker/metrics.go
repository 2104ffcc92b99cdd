package broker

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics belong to one Broker. Names start with halfbox_broker_.
type metrics struct {
	registerer prometheus.Registerer
	collectors []prometheus.Collector

	requests     *prometheus.CounterVec // code, result
	stored       prometheus.Counter
	storedBytes  prometheus.Counter
	halfEnded    *prometheus.CounterVec // verdict
	checks       *prometheus.CounterVec // result
	discarded    prometheus.Counter
	commitTime   prometheus.Histogram
	commitSize   prometheus.Histogram
	writeErrors  prometheus.Counter
	badFrames    prometheus.Counter
	expired      prometheus.Counter
	connections  prometheus.Gauge
	parkedPulls  prometheus.Gauge
	openHalves   prometheus.Gauge
	handlerPanic prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{registerer: reg}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "halfbox", Subsystem: "broker", Name: name, Help: help})
		m.collectors = append(m.collectors, c)
		return c
	}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "halfbox", Subsystem: "broker", Name: name, Help: help}, labels)
		m.collectors = append(m.collectors, c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "halfbox", Subsystem: "broker", Name: name, Help: help})
		m.collectors = append(m.collectors, g)
		return g
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "halfbox", Subsystem: "broker", Name: name, Help: help, Buckets: buckets})
		m.collectors = append(m.collectors, h)
		return h
	}
	m.requests = vec("requests_total", "Requests by request code and response code (\"none\": dropped by a hook).", "code", "response")
	m.stored = counter("messages_stored_total", "Messages made visible to consumers.")
	m.storedBytes = counter("messages_stored_bytes_total", "Encoded size of the messages made visible, in bytes.")
	m.halfEnded = vec("half_ended_total", "END_TRANSACTION requests by verdict (commit, rollback, unknown, gone).", "verdict")
	m.checks = vec("checks_total", "Check-back attempts by result (sent, no_producer).", "result")
	m.discarded = counter("half_discarded_total", "Halves moved to TRANS_CHECK_MAX_TIME_TOPIC.")
	m.commitTime = histogram("commit_seconds", "Duration of one storage commit including fsync, in seconds.", prometheus.ExponentialBuckets(0.0005, 2, 14))
	m.commitSize = histogram("commit_writes", "Writes that shared one storage commit.", prometheus.ExponentialBuckets(1, 2, 11))
	m.writeErrors = counter("write_errors_total", "Writes that failed.")
	m.badFrames = counter("bad_frames_total", "Connections closed for a malformed or oversized frame.")
	m.expired = counter("messages_expired_total", "Messages deleted by retention.")
	m.connections = gauge("connections", "Open client connections.")
	m.parkedPulls = gauge("parked_pulls", "Pull requests waiting for messages.")
	m.openHalves = gauge("half_open", "Undecided half messages.")
	m.handlerPanic = counter("handler_panics_total", "Panics recovered in request handlers.")
	return m, m.register()
}

func (m *metrics) register() error {
	if m.registerer == nil {
		return nil
	}
	for i, c := range m.collectors {
		if err := m.registerer.Register(c); err != nil {
			for _, done := range m.collectors[:i] {
				m.registerer.Unregister(done)
			}
			var dup prometheus.AlreadyRegisteredError
			if errors.As(err, &dup) {
				return fmt.Errorf("broker: Registerer: another broker's metrics are registered there already: %w", err)
			}
			return fmt.Errorf("broker: Registerer: %w", err)
		}
	}
	return nil
}

func (m *metrics) unregister() {
	if m.registerer == nil {
		return
	}
	for _, c := range m.collectors {
		m.registerer.Unregister(c)
	}
}

// request counts one request. Codes come from clients: unknown ones share one
// label so that a client cannot create series without end.
func (m *metrics) request(code int, response string) {
	label := "other"
	if handlerOf(code) != nil {
		label = strconv.Itoa(code)
	}
	m.requests.WithLabelValues(label, response).Inc()
}
