package broker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
)

const (
	// patience is the deadline of every condition waited for, and of a client's send: longer than the 30 s after which
	// a client tries again what a pause has made fail.
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

func eventually(t testing.TB, cond func() bool, msg string, args ...any) {
	t.Helper()
	require.Eventuallyf(t, cond, patience, tick, msg, args...)
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// unique gives client objects an instance name each: objects that share one
// share a connection and a check-back handler.
func unique() string { return uuid.NewString() }

func newProducer(t testing.TB, b *broker.Broker, opts ...producer.Option) rocketmq.Producer {
	t.Helper()
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{b.Addr()}), producer.WithGroupName("plain-" + unique()),
		producer.WithInstanceName(unique()), producer.WithRetry(0), producer.WithSendMsgTimeout(patience),
	}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
	return p
}

// listener answers what its functions say; the zero value commits.
type listener struct {
	execute func(*primitive.Message) primitive.LocalTransactionState
	check   func(*primitive.MessageExt) primitive.LocalTransactionState
}

func (l listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	if l.execute == nil {
		return primitive.CommitMessageState
	}
	return l.execute(m)
}

func (l listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	if l.check == nil {
		return primitive.CommitMessageState
	}
	return l.check(m)
}

func always(s primitive.LocalTransactionState) func(*primitive.Message) primitive.LocalTransactionState {
	return func(*primitive.Message) primitive.LocalTransactionState { return s }
}

// undecided answers no check either: the broker asks whoever has registered by then.
func undecided(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.UnkonwnState
}

func newTxProducer(t testing.TB, b *broker.Broker, group string, l listener, opts ...producer.Option) rocketmq.TransactionProducer {
	t.Helper()
	p, err := rocketmq.NewTransactionProducer(l, append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{b.Addr()}), producer.WithGroupName(group),
		producer.WithInstanceName(unique()), producer.WithRetry(0), producer.WithSendMsgTimeout(patience),
	}, opts...)...)
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
	return p
}

// sendHalf sends a transactional message with its own UNIQ_KEY, which it returns.
func sendHalf(t testing.TB, p rocketmq.TransactionProducer, topic, body string, props ...string) string {
	t.Helper()
	msg := primitive.NewMessage(topic, []byte(body))
	id := unique()
	msg.WithProperty("UNIQ_KEY", id)
	for i := 0; i+1 < len(props); i += 2 {
		msg.WithProperty(props[i], props[i+1])
	}
	res, err := p.SendMessageInTransaction(within(t), msg)
	require.NoError(t, err)
	require.Equal(t, primitive.SendOK, res.Status)
	return id
}

// inbox collects what a consumer got.
type inbox struct {
	mu   sync.Mutex
	msgs []*primitive.MessageExt
	at   []time.Time
}

func (i *inbox) add(m *primitive.MessageExt) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.msgs = append(i.msgs, m)
	i.at = append(i.at, time.Now())
	return len(i.msgs)
}

func (i *inbox) len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.msgs)
}

func (i *inbox) bodies() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var out []string
	for _, m := range i.msgs {
		out = append(out, string(m.Body))
	}
	return out
}

type handler func(m *primitive.MessageExt) consumer.ConsumeResult

// pushConsumer is what a test does with its consumer.
type pushConsumer struct{ commit, shutdown func() }

// newConsumer starts a push consumer; shutdown is called at the end of the test
// if not before. It suspends and lets the client go quiet first: its Shutdown
// closes a channel others may be sending on.
func newConsumer(t testing.TB, b *broker.Broker, group, topic, tags string, h handler, opts ...consumer.Option) pushConsumer {
	t.Helper()
	c, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{b.Addr()}), consumer.WithGroupName(group),
		consumer.WithInstance(unique()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, opts...)...)
	require.NoError(t, err)
	err = c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags},
		func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range msgs {
				if r := h(m); r != consumer.ConsumeSuccess {
					return r, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		})
	require.NoError(t, err)
	require.NoError(t, c.Start())
	commit := func() {
		if p, ok := c.(interface{ PersistConsumerOffset() error }); ok {
			_ = p.PersistConsumerOffset()
		}
	}
	var once sync.Once
	shutdown := func() {
		once.Do(func() {
			c.Suspend()
			commit()
			require.NoError(t, c.Shutdown())
		})
	}
	// The client's Shutdown races with a rebalance that a notification of the
	// broker starts (its field rmqClient.close is not synchronised): at the end
	// of a test the broker goes first.
	t.Cleanup(func() {
		require.NoError(t, b.Stop(context.Background()))
		shutdown()
	})
	return pushConsumer{commit, shutdown}
}

func collect(in *inbox) handler {
	return func(m *primitive.MessageExt) consumer.ConsumeResult {
		in.add(m)
		return consumer.ConsumeSuccess
	}
}

func send(t testing.TB, p rocketmq.Producer, msgs ...*primitive.Message) *primitive.SendResult {
	t.Helper()
	res, err := p.SendSync(within(t), msgs...)
	require.NoError(t, err)
	require.Equal(t, primitive.SendOK, res.Status)
	return res
}
