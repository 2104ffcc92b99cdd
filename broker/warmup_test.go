package broker_test

import (
	"testing"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/remoting"
)

const warmUpTopic = "warmup"

// warmUpSelector finds no queue for the warm-up topic: the client then loads
// its route, and so learns of the broker, but sends nothing.
type warmUpSelector struct{ producer.QueueSelector }

func (s warmUpSelector) Select(m *primitive.Message, mqs []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.Topic == warmUpTopic {
		return nil
	}
	return s.QueueSelector.Select(m, mqs, last)
}

// newRegisteredTxProducer returns once the broker can ask the producer: clients
// send heartbeats only to brokers in routes they looked up, a second after Start.
func newRegisteredTxProducer(t testing.TB, b *broker.Broker, group string, l listener) rocketmq.TransactionProducer {
	t.Helper()
	instance := unique()
	p := newTxProducer(t, b, group, l, producer.WithInstanceName(instance),
		producer.WithQueueSelector(warmUpSelector{producer.NewRoundRobinQueueSelector()}))
	_, err := p.SendMessageInTransaction(within(t), primitive.NewMessage(warmUpTopic, []byte("x")))
	require.ErrorContains(t, err, "route info not found")
	require.NoError(t, b.WaitProducer(within(t), group))
	eventually(t, func() bool { // that may have been another member of the group
		known, _, err := remoting.KnowsProducer(t.Context(), b.Addr(), group, instance, remoting.Credentials{})
		return err == nil && known
	}, "not registered")
	return p
}
