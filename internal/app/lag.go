package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

// How often it is asked how far the points are behind, and how long the answers may take.
const (
	lagEvery   = 15 * time.Second
	lagTimeout = 10 * time.Second
)

// lagMeter keeps halfbox_points_lag. While the lag is not known the gauge is not there: a number of earlier would lie.
type lagMeter struct {
	lag    *prometheus.GaugeVec
	errors prometheus.Counter
	topics []string
	ask    func(ctx context.Context, topic string) (int64, error)
	log    *zap.Logger
}

// openLag measures how many messages the points consumer's group has not acknowledged, those of its retry topic too.
func (a *App) openLag() error {
	group := a.cfg.RocketMQ.PointsGroup
	m := &lagMeter{
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "halfbox_points_lag",
			Help: "Messages that the consumer group of points has not acknowledged yet, by topic. Every points process shows the whole group's; absent while it is not known.",
		}, []string{"topic"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "halfbox_points_lag_errors_total",
			Help: "Times that the lag of the points could not be asked from RocketMQ.",
		}),
		topics: []string{a.cfg.RocketMQ.OrderTopic, "%RETRY%" + group},
		ask: func(ctx context.Context, topic string) (int64, error) {
			return rocketmq.Lag(ctx, a.nameServers, a.credentials(), group, topic)
		},
		log: a.log.Named("points"),
	}
	for _, c := range []prometheus.Collector{m.lag, m.errors} {
		if err := a.reg.Register(c); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	started := false
	a.onStart("points lag", func() error {
		started = true
		go func() {
			defer close(done)
			m.run(ctx)
		}()
		return nil
	})
	a.onStop("points lag", func(context.Context) error {
		cancel()
		if started {
			<-done
		}
		return nil
	})
	return nil
}

func (m *lagMeter) run(ctx context.Context) {
	every := time.NewTicker(lagEvery)
	defer every.Stop()
	for {
		m.measure(ctx)
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}

func (m *lagMeter) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lagTimeout)
	defer cancel()
	for _, topic := range m.topics {
		behind, err := m.ask(ctx, topic)
		if err == nil {
			m.lag.WithLabelValues(topic).Set(float64(behind))
			continue
		}
		m.lag.DeleteLabelValues(topic)
		m.errors.Inc()
		m.log.Debug("the lag of the points is not known", zap.String("topic", topic), zap.Error(err))
	}
}
