package txmsg

import (
	"context"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"go.uber.org/zap"
)

// The client sends heartbeats only to the brokers of topics it has sent to, the first one a second after its start.
// So a producer that has not sent yet is unknown to the broker and is not asked about the half messages of its
// predecessor. A warm-up message loads the topic's route without sending anything: the selector finds no queue.
const (
	warmupProperty  = "__halfbox_warmup"
	warmupRouted    = "__halfbox_routed"
	firstHeartbeat  = time.Second
	heartbeatPeriod = 30 * time.Second
	heartbeatMargin = 200 * time.Millisecond
	warmupRetryMin  = 200 * time.Millisecond
	warmupRetryMax  = 2 * time.Second
)

type warmupSelector struct{ producer.QueueSelector }

func newWarmupSelector() warmupSelector {
	return warmupSelector{producer.NewRoundRobinQueueSelector()}
}

func (s warmupSelector) Select(m *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.GetProperty(warmupProperty) != "" {
		m.WithProperty(warmupRouted, "true") // we are asked only when there is a route
		return nil
	}
	return s.QueueSelector.Select(m, queues, last)
}

// warmUp loads the topic's route and then waits for the heartbeat that follows.
func (p *Producer) warmUp(started time.Time) {
	for wait := warmupRetryMin; !p.loadRoute(); wait = min(2*wait, warmupRetryMax) {
		if !p.pause(wait) {
			return
		}
	}
	close(p.routed)
	routed := time.Since(started)
	wait := firstHeartbeat - routed
	if wait < 0 {
		wait = heartbeatPeriod - (routed-firstHeartbeat)%heartbeatPeriod
	}
	if p.pause(wait + heartbeatMargin) {
		p.ready.Store(true)
		p.cfg.Logger.Info("producer is known to the broker", zap.String("group", p.cfg.Group), zap.String("topic", p.cfg.Topic))
	}
}

func (p *Producer) loadRoute() bool {
	m := primitive.NewMessage(p.cfg.Topic, nil)
	m.WithProperty(warmupProperty, "true")
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.HalfTimeout)
	defer cancel()
	_, _ = p.client.SendMessageInTransaction(ctx, m) // always an error: nothing is sent
	return m.GetProperty(warmupRouted) != ""
}

func (p *Producer) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.stop:
		return false
	}
}
