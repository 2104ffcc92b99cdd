package txmsg

import (
	"context"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/remoting"
)

// The client sends heartbeats only to the brokers of topics it has sent to, the first one a second after its start and
// then every 30 s. So a producer that has not sent yet is unknown to the broker and is not asked about the half messages
// of its predecessor. A warm-up message loads a topic's route without sending anything: the selector finds no queue.
const (
	warmupProperty  = "__halfbox_warmup"
	warmupRouted    = "__halfbox_routed"
	firstHeartbeat  = time.Second
	heartbeatPeriod = 30 * time.Second
	heartbeatMargin = 200 * time.Millisecond
	warmupRetryMin  = 200 * time.Millisecond
	warmupRetryMax  = 2 * time.Second
	confirmMin      = 20 * time.Millisecond
	confirmMax      = time.Second
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

// warmUp loads the topics' routes, waits for the heartbeat that follows, and has the brokers confirm it.
func (p *Producer) warmUp(started time.Time) {
	for i, topic := range p.cfg.topics() {
		for wait := warmupRetryMin; !p.loadRoute(topic); wait = min(2*wait, warmupRetryMax) {
			if !p.pause(wait) {
				return
			}
		}
		if i == 0 {
			close(p.routed)
		}
	}
	due := heartbeatAfter(time.Since(started))
	// No heartbeat is earlier than the client's first one.
	if !p.pause(firstHeartbeat-time.Since(started)) || !p.awaitHeartbeat(started.Add(due)) {
		return
	}
	p.ready.Store(true)
	p.cfg.Logger.Info("producer is known to the broker", zap.String("group", p.cfg.Group), zap.Strings("topics", p.cfg.topics()))
}

// heartbeatAfter is when the client sends its next heartbeat; both times count from its start.
func heartbeatAfter(t time.Duration) time.Duration {
	if t < firstHeartbeat {
		return firstHeartbeat
	}
	return firstHeartbeat + ((t-firstHeartbeat)/heartbeatPeriod+1)*heartbeatPeriod
}

// awaitHeartbeat asks the brokers until each knows this producer; false means that Stop was called. A broker that does
// not say is taken to know it once the heartbeat is due.
func (p *Producer) awaitHeartbeat(due time.Time) bool {
	for wait := confirmMin; ; wait = min(2*wait, confirmMax) {
		known, supported, err := p.known()
		switch {
		case known:
			return true
		case !supported && time.Since(due) > heartbeatMargin:
			p.cfg.Logger.Info("the broker does not tell whom it knows: the heartbeat was due, so it is taken for sent", zap.String("group", p.cfg.Group))
			return true
		case err != nil:
			p.cfg.Logger.Debug("cannot ask the broker whether it knows the producer", zap.Error(err))
		}
		if !p.pause(wait) {
			return false
		}
	}
}

// known asks every broker of every topic whether it has had this producer's heartbeat.
func (p *Producer) known() (known, supported bool, err error) {
	ctx, cancel := context.WithTimeout(p.warming, p.cfg.HalfTimeout)
	defer cancel()
	brokers := map[string]bool{}
	for _, topic := range p.cfg.topics() {
		masters, err := p.masters(ctx, topic)
		if err != nil {
			return false, true, err
		}
		for _, addr := range masters {
			brokers[addr] = true
		}
	}
	for addr := range brokers {
		known, supported, err := remoting.KnowsProducer(ctx, addr, p.cfg.Group, p.instance, p.credentials())
		if err != nil || !known {
			return false, supported, err
		}
	}
	return len(brokers) > 0, true, nil
}

func (p *Producer) loadRoute(topic string) bool {
	m := primitive.NewMessage(topic, nil)
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
	case <-p.warming.Done():
		return false
	}
}
