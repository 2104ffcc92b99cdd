package enginetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/netfault"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

// onBrokers runs the test on the in-process broker and on a real cluster.
func onBrokers(t *testing.T, test func(t *testing.T, nameServers []string)) {
	t.Run("in process", func(t *testing.T) {
		t.Parallel()
		// An END_TRANSACTION that is late is not overtaken by a check.
		test(t, []string{brokertest.Start(t, func(c *broker.Config) { c.TransactionTimeout = 6 * time.Second }).Addr()})
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, RocketMQ(t))
	})
}

// transactions is a producer whose local transactions end as the message's body says: "commit", "rollback", or
// "unknown", which is committed when the broker asks.
type transactions struct {
	client.TransactionProducer
	mu     sync.Mutex
	checks []string
}

func (x *transactions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch string(m.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState // the client spells it so
}

func (x *transactions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.checks = append(x.checks, string(m.Body))
	return primitive.CommitMessageState
}

func newTransactions(t *testing.T, nameServers []string) *transactions {
	x := &transactions{}
	opts, err := rocketmq.ProducerConfig{NameServers: nameServers, Group: Group(t), SendTimeout: soon}.Options("test")
	require.NoError(t, err)
	x.TransactionProducer, err = client.NewTransactionProducer(x, opts...)
	require.NoError(t, err)
	require.NoError(t, x.Start())
	t.Cleanup(func() { require.NoError(t, x.Shutdown()) })
	return x
}

func (x *transactions) send(t *testing.T, topic, body string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
	defer cancel()
	result, err := x.SendMessageInTransaction(ctx, primitive.NewMessage(topic, []byte(body)))
	if err == nil && result.Status != primitive.SendOK {
		err = errors.New("half message was not stored")
	}
	return err
}

// inbox collects what a new consumer group receives.
type inbox struct {
	mu     sync.Mutex
	bodies []string
}

func newInbox(t *testing.T, nameServers []string, topic string) *inbox {
	in := &inbox{}
	c, err := rocketmq.NewConsumer(rocketmq.ConsumerConfig{
		NameServers: nameServers, Group: Group(t), Topic: topic,
		Handle: func(_ context.Context, m rocketmq.Message) error {
			in.mu.Lock()
			defer in.mu.Unlock()
			in.bodies = append(in.bodies, string(m.Body))
			return nil
		},
	})
	require.NoError(t, err)
	c.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			t.Log(err)
		}
	})
	return in
}

func (in *inbox) has(bodies ...string) func() bool {
	return func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		seen := map[string]bool{}
		for _, b := range in.bodies {
			seen[b] = true
		}
		for _, b := range bodies {
			if !seen[b] {
				return false
			}
		}
		return true
	}
}

const delivery = time.Minute // a real consumer's rebalance and a real broker's check take their time

// Half message, commit, rollback and check-back, with the client going through the cluster's proxy.
func TestTransactionsThroughProxy(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, nameServers []string) {
		topic := Topic(t, nameServers)
		cluster := NewRocketMQProxy(t, nameServers)
		in := newInbox(t, cluster.NameServers(), topic)
		x := newTransactions(t, cluster.NameServers())
		require.NoError(t, x.send(t, topic, "commit"))
		require.NoError(t, x.send(t, topic, "rollback"))
		require.NoError(t, x.send(t, topic, "unknown"))
		require.Eventually(t, in.has("commit", "unknown"), delivery, 20*time.Millisecond)
		require.False(t, in.has("rollback")())
		x.mu.Lock()
		defer x.mu.Unlock()
		require.NotEmpty(t, x.checks)
		require.NotContains(t, x.checks, "rollback")
		require.Positive(t, cluster.Broker(t).Bytes(ToServer), "the client went through the broker's proxy")
		require.Positive(t, cluster.NameServer(0).Bytes(ToServer))
	})
}

func TestBrokerBehindBlackhole(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, nameServers []string) {
		topic := Topic(t, nameServers)
		cluster := NewRocketMQProxy(t, nameServers)
		p, err := rocketmq.NewProducer(rocketmq.ProducerConfig{NameServers: cluster.NameServers(), Group: Group(t), SendTimeout: time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
		send := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := p.SendSync(ctx, primitive.NewMessage(topic, []byte(uuid.NewString())))
			return err
		}
		require.Eventually(t, func() bool { return send() == nil }, delivery, 20*time.Millisecond)
		cluster.Broker(t).Blackhole()
		require.Error(t, send())
		cluster.Broker(t).Cut()
		require.Error(t, send())
		cluster.Set(Fault{})
		require.Eventually(t, func() bool { return send() == nil }, delivery, 20*time.Millisecond)
	})
}

func TestTopicHasRoute(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, nameServers []string) {
		topic := Topic(t, nameServers)
		CreateTopic(t, nameServers, topic) // twice is fine
		route, err := remoting.Ask(t.Context(), nameServers[0], remoting.CodeRoute, map[string]string{"topic": topic}, remoting.Credentials{})
		require.NoError(t, err)
		require.Equal(t, remoting.CodeOK, route.Code)
		require.Len(t, netfault.BrokerAddrs(route.Body), 1)
	})
}

func TestOwnRocketMQ(t *testing.T) {
	t.Parallel()
	own := OwnRocketMQ(t, "transactionCheckInterval=1000")
	topic := Topic(t, own.NameServers())
	p, err := rocketmq.NewProducer(rocketmq.ProducerConfig{NameServers: own.NameServers(), Group: Group(t), SendTimeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Shutdown() })
	send := func(body string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := p.SendSync(ctx, primitive.NewMessage(topic, []byte(body)))
		return err
	}
	require.Eventually(t, func() bool { return send("first") == nil }, delivery, 50*time.Millisecond)
	addr := own.BrokerAddr()

	own.Broker.Pause()
	require.Error(t, send("while frozen"))
	own.Broker.Resume()
	require.Eventually(t, func() bool { return send("thawed") == nil }, delivery, 50*time.Millisecond)

	own.NameServer.Kill()
	require.Eventually(t, func() bool { return send("without name server") == nil }, delivery, 50*time.Millisecond, "clients know the route")
	own.Start()
	require.True(t, own.NameServer.Running())
	require.True(t, own.Broker.Running())

	own.Kill()
	require.Error(t, send("to nobody"))
	own.Start()
	require.Equal(t, addr, own.BrokerAddr())
	require.Eventually(t, func() bool { return send("last") == nil }, delivery, 50*time.Millisecond)
	in := newInbox(t, own.NameServers(), topic)
	require.Eventually(t, in.has("first", "thawed", "without name server", "last"), delivery, 50*time.Millisecond)
}
