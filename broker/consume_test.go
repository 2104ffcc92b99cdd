package broker_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
)

func TestDeliveryAndTagFilter(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	all, some := &inbox{}, &inbox{}
	newConsumer(t, b, "all", "orders", "*", collect(all))
	newConsumer(t, b, "some", "orders", "a || c", collect(some))
	p := newProducer(t, b)
	for i := range 40 {
		send(t, p, primitive.NewMessage("orders", []byte(strconv.Itoa(i))).WithTag(string(rune('a'+i%4))))
	}
	eventually(t, func() bool { return all.len() == 40 && some.len() == 20 }, "missing")
	for _, m := range some.msgs {
		require.Contains(t, []string{"a", "c"}, m.GetTags())
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(all.bodies()))), 40)
}

// A waiting pull is answered by the message that comes; when its time is over it would be answered with nothing.
func TestLongPollIsPrompt(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	w := park(t, b)
	send(t, newProducer(t, b), primitive.NewMessage("orders", []byte("x")))
	require.Zero(t, w.read().Code)
}

func TestRetryThenSuccess(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	in := &inbox{}
	newConsumer(t, b, "g", "orders", "*", func(m *primitive.MessageExt) consumer.ConsumeResult {
		if in.add(m) < 3 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	id := send(t, newProducer(t, b), primitive.NewMessage("orders", []byte("again"))).MsgID
	eventually(t, func() bool { return in.len() == 3 }, "not retried")
	for i, m := range in.msgs {
		require.Equal(t, "again", string(m.Body))
		require.Equal(t, "orders", m.Topic, "the callback sees the original topic")
		require.EqualValues(t, i, m.ReconsumeTimes)
		require.Equal(t, id, m.GetProperty("UNIQ_KEY"))
	}
	require.GreaterOrEqual(t, in.at[1].Sub(in.at[0]), 100*time.Millisecond, "level 3")
	require.NotEmpty(t, in.msgs[2].GetProperty("ORIGIN_MESSAGE_ID"))
	require.EqualValues(t, 2, count(b, "%RETRY%g"))
}

func TestDeadLetterAfterMaxAttempts(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	in := &inbox{}
	newConsumer(t, b, "g", "orders", "*", func(m *primitive.MessageExt) consumer.ConsumeResult {
		in.add(m)
		return consumer.ConsumeRetryLater
	}, consumer.WithMaxReconsumeTimes(2))
	send(t, newProducer(t, b), primitive.NewMessage("orders", []byte("poison")))
	eventually(t, func() bool { return count(b, "%DLQ%g") == 1 }, "not in the dead letter topic")
	require.Equal(t, 3, in.len(), "first delivery and two retries")
	dead := messages(t, b, "%DLQ%g")[0]
	require.Equal(t, "poison", string(dead.Body))
	require.Equal(t, "orders", dead.Properties["RETRY_TOPIC"])
}

func TestRebalance(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	one, two := &inbox{}, &inbox{}
	first := newConsumer(t, b, "g", "orders", "*", collect(one))
	round := func(body string) {
		for q := range 16 {
			send(t, p, primitive.NewMessage("orders", fmt.Appendf(nil, "%s-%d", body, q)))
		}
	}
	round("alone")
	eventually(t, func() bool { return one.len() == 16 }, "the only consumer has all queues")
	newConsumer(t, b, "g", "orders", "*", collect(two))
	eventually(t, func() bool {
		round("shared")
		return two.len() > 0
	}, "a second consumer gets a share without waiting 20 s")
	if raceEnabled {
		return // the client's Shutdown races with the rebalance that is going on
	}
	first.shutdown()
	got := two.len()
	eventually(t, func() bool {
		round("rest")
		return two.len() >= got+32
	}, "the rest takes over")
}

func TestOffsetsSurviveConsumerAndBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	first, second := &inbox{}, &inbox{}
	c := newConsumer(t, b, "g", "orders", "*", collect(first))
	for i := range 8 {
		send(t, p, primitive.NewMessage("orders", []byte(strconv.Itoa(i))))
	}
	committed := func(b *broker.Broker) (n int64) {
		for q := range 4 {
			off, _ := b.ConsumerOffset("g", "orders", q)
			n += off
		}
		return n
	}
	eventually(t, func() bool { return first.len() == 8 && b.Stats().ParkedPulls == 5 }, "not delivered")
	// The client counts a message as consumed a moment after its handler has returned.
	eventually(t, func() bool { c.commit(); return committed(b) == 8 }, "not committed")
	c.shutdown()
	b = brokertest.Restart(t, b)
	require.EqualValues(t, 8, committed(b))
	send(t, newProducer(t, b), primitive.NewMessage("orders", []byte("new")))
	newConsumer(t, b, "g", "orders", "*", collect(second))
	eventually(t, func() bool { return second.len() > 0 }, "not delivered")
	require.Equal(t, []string{"new"}, second.bodies())
}

// A running consumer and producer go on when the broker comes back.
func TestClientsSurviveBrokerRestart(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	// A send on the connection that has just ended waits for its time-out, which must leave time for another.
	p, in := newProducer(t, b, producer.WithSendMsgTimeout(3*time.Second)), &inbox{}
	newConsumer(t, b, "g", "orders", "*", collect(in))
	eventually(t, func() bool {
		_, err := p.SendSync(within(t), primitive.NewMessage("orders", []byte("before")))
		return err == nil
	}, "not sent")
	eventually(t, func() bool { return in.len() > 0 }, "not delivered")
	brokertest.Restart(t, b)
	eventually(t, func() bool {
		_, err := p.SendSync(within(t), primitive.NewMessage("orders", []byte("after")))
		return err == nil
	}, "the producer does not come back")
	eventually(t, func() bool { return slices.Contains(in.bodies(), "after") }, "the consumer does not come back")
}

func TestDelayLevelSurvivesRestart(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	b := brokertest.Start(t, func(c *broker.Config) {
		c.DelayLevels = []time.Duration{50 * time.Millisecond, time.Hour}
		c.Hooks.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	p := newProducer(t, b)
	send(t, p, primitive.NewMessage("orders", []byte("late")).WithDelayTimeLevel(2))
	send(t, p, primitive.NewMessage("orders", []byte("soon")).WithDelayTimeLevel(1))
	eventually(t, func() bool { return count(b, "orders") == 1 }, "level 1 not delivered")
	b = brokertest.Restart(t, b)
	send(t, newProducer(t, b), primitive.NewMessage("orders", []byte("soon again")).WithDelayTimeLevel(1))
	eventually(t, func() bool { return count(b, "orders") > 1 }, "level 1 not delivered after the restart")
	require.EqualValues(t, 2, count(b, "orders"), "the delay ended with the restart")
	ahead.Store(int64(time.Hour))
	eventually(t, func() bool { return count(b, "orders") == 3 }, "level 2 not delivered")
	for _, m := range messages(t, b, "orders") {
		require.NotContains(t, m.Properties, "DELAY")
		require.NotContains(t, m.Properties, "REAL_TOPIC")
	}
}

func TestBatchSend(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	in := &inbox{}
	newConsumer(t, b, "g", "orders", "*", collect(in))
	var batch []*primitive.Message
	for i := range 100 {
		m := primitive.NewMessage("orders", []byte(strconv.Itoa(i))).WithKeys([]string{"k" + strconv.Itoa(i)})
		m.WithProperty("UNIQ_KEY", unique())
		batch = append(batch, m)
	}
	res := send(t, newProducer(t, b), batch...)
	require.Len(t, res.OffsetMsgID, 100*32+99)
	eventually(t, func() bool { return in.len() == 100 }, "not delivered")
	msgs := messages(t, b, "orders")
	require.Len(t, msgs, 100)
	for i, m := range msgs {
		require.Equal(t, strconv.Itoa(i), string(m.Body), "a batch is one queue, in order")
		require.Equal(t, msgs[0].QueueID, m.QueueID)
	}
	found, err := b.FindMessages("orders", "k42")
	require.NoError(t, err)
	require.Len(t, found, 1)
}

func TestCompressedBody(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	in := &inbox{}
	newConsumer(t, b, "g", "orders", "*", collect(in))
	body := make([]byte, 64<<10)
	send(t, newProducer(t, b), primitive.NewMessage("orders", body))
	eventually(t, func() bool { return in.len() == 1 }, "not delivered")
	require.Equal(t, body, in.msgs[0].Body)
	require.Equal(t, body, messages(t, b, "orders")[0].Body)
}

func TestOrderlyConsumer(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the client's orderly mode has a data race of its own")
	}
	b := brokertest.Start(t)
	var n atomic.Int32
	newConsumer(t, b, "g", "orders", "*", func(*primitive.MessageExt) consumer.ConsumeResult {
		n.Add(1)
		return consumer.ConsumeSuccess
	}, consumer.WithConsumerOrder(true))
	p := newProducer(t, b)
	for range 4 {
		send(t, p, primitive.NewMessage("orders", []byte("x")))
	}
	eventually(t, func() bool { return n.Load() == 4 }, "the queue locks are not granted")
}
