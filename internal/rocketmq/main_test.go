package rocketmq_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
)

func TestMain(m *testing.M) { rocketmqtest.Main(m) }

const (
	topic = "ORDER_EVENT_TOPIC"
	wait  = time.Minute // the client may give a queue up at the start and take it again in its next round, 20 s later
	tick  = 5 * time.Millisecond
)

func newProducer(t testing.TB, b *broker.Broker) client.Producer {
	t.Helper()
	p, err := rocketmq.NewProducer(rocketmq.ProducerConfig{NameServers: []string{b.Addr()}, Group: "plain-" + uuid.NewString(), SendTimeout: wait})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
	return p
}

// send sends one message with a tag and returns its id.
func send(t testing.TB, p client.Producer, tag, body string) string {
	t.Helper()
	return sendTo(t, p, topic, tag, body)
}

func sendTo(t testing.TB, p client.Producer, topic, tag, body string) string {
	t.Helper()
	res, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)).WithTag(tag))
	require.NoError(t, err)
	return res.MsgID
}

// newConsumer makes a consumer that is stopped when the test ends.
func newConsumer(t testing.TB, addr string, cfg rocketmq.ConsumerConfig) *rocketmq.Consumer {
	t.Helper()
	cfg.NameServers, cfg.Topic = []string{addr}, topic
	return newConsumerOf(t, cfg)
}

// newConsumerOf is newConsumer for any name servers and topic. Its client has time to end: a pause of the machine is not
// to pass for a broker that does not answer.
func newConsumerOf(t testing.TB, cfg rocketmq.ConsumerConfig) *rocketmq.Consumer {
	t.Helper()
	if cfg.Group == "" {
		cfg.Group = "points-" + uuid.NewString()
	}
	c, err := rocketmq.NewConsumer(cfg)
	require.NoError(t, err)
	c.SetLookTimeout(wait)
	t.Cleanup(func() { stop(t, c) })
	return c
}

func stop(t testing.TB, c *rocketmq.Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	require.NoError(t, c.Stop(ctx))
}

// inbox remembers what handlers were given.
type inbox struct {
	mu  sync.Mutex
	got []rocketmq.Message
	n   map[string]int // by message id
}

// add returns how often the message has come, this time included.
func (b *inbox) add(m rocketmq.Message) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n == nil {
		b.n = map[string]int{}
	}
	b.got = append(b.got, m)
	b.n[m.MsgID]++
	return b.n[m.MsgID]
}

func (b *inbox) times(msgID string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n[msgID]
}

// distinct is the number of different messages.
func (b *inbox) distinct() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.n)
}

func (b *inbox) messages() []rocketmq.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]rocketmq.Message(nil), b.got...)
}

// collect is a handler that succeeds.
func (b *inbox) collect(_ context.Context, m rocketmq.Message) error {
	b.add(m)
	return nil
}

// sentBack is the number of messages that went back to the broker for a group.
func sentBack(b *broker.Broker, group string) int64 {
	stats, _ := b.Topic("%RETRY%" + group)
	return stats.Messages()
}

// requireCommitted asserts that a group that was stopped has told the broker how far it came. The client sends its
// offsets without waiting for an answer.
func requireCommitted(t testing.TB, b *broker.Broker, group string, messages int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		var sum int64
		stats, _ := b.Topic(topic)
		for q := range stats.Queues {
			offset, _ := b.ConsumerOffset(group, topic, q)
			sum += offset
		}
		return sum == messages
	}, wait, tick, "the offsets were not sent")
}

func body(i int) string { return fmt.Sprintf("body-%d", i) }
