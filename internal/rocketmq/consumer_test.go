package rocketmq_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

func TestDelivery(t *testing.T) {
	t.Parallel()
	const messages = 100
	b := brokertest.Start(t)
	p := newProducer(t, b)
	in := &inbox{}
	group := "points-" + uuid.NewString()
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: in.collect})
	require.Error(t, c.Ready())
	bodies := map[string]string{}
	for i := range messages / 2 {
		bodies[send(t, p, "order.created", body(i))] = body(i)
	}
	c.Start()
	require.Eventually(t, func() bool { return c.Ready() == nil }, wait, tick)
	for i := messages / 2; i < messages; i++ {
		bodies[send(t, p, "order.created", body(i))] = body(i)
	}
	require.Eventually(t, func() bool { return in.distinct() == messages }, wait, tick, "also what was sent before the start")
	for _, m := range in.messages() {
		require.Equal(t, rocketmq.Message{MsgID: m.MsgID, Topic: topic, Tag: "order.created", Body: []byte(bodies[m.MsgID]), StoredAt: m.StoredAt}, m)
		require.WithinDuration(t, time.Now(), m.StoredAt, wait)
	}
	stop(t, c)
	requireCommitted(t, b, group, messages)
	require.Zero(t, sentBack(b, group))
}

func TestTags(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	for _, tag := range []string{"order.created", "order.cancelled", "order.exploded", ""} {
		send(t, p, tag, tag)
	}
	one, two, all := &inbox{}, &inbox{}, &inbox{}
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Handle: one.collect, Tags: []string{"order.created"}}).Start()
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Handle: two.collect, Tags: []string{"order.created", "order.cancelled"}}).Start()
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Handle: all.collect}).Start()
	require.Eventually(t, func() bool { return one.distinct() == 1 && two.distinct() == 2 && all.distinct() == 4 }, wait, tick)
	send(t, p, "order.exploded", "x")
	send(t, p, "order.created", "last")
	require.Eventually(t, func() bool { return one.distinct() == 2 && two.distinct() == 3 && all.distinct() == 6 }, wait, tick)
	for _, m := range append(one.messages(), two.messages()...) {
		require.Contains(t, []string{"order.created", "order.cancelled"}, m.Tag)
	}
}

// A fault that passes spends nothing of the message's retry budget: the broker delivers it once.
func TestHandlerErrorIsRetriedInPlace(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	in := &inbox{}
	group := "points-" + uuid.NewString()
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: func(_ context.Context, m rocketmq.Message) error {
		if in.add(m); string(m.Body) == "stubborn" && in.times(m.MsgID) < 4 {
			return errors.New("database is down")
		}
		return nil
	}})
	c.Start()
	stubborn := send(t, p, "t", "stubborn")
	for i := range 20 {
		send(t, p, "t", body(i))
	}
	require.Eventually(t, func() bool { return in.distinct() == 21 && in.times(stubborn) == 4 }, wait, tick)
	stop(t, c)
	require.Equal(t, 4, in.times(stubborn))
	require.Zero(t, sentBack(b, group), "nothing went back to the broker")
	requireCommitted(t, b, group, 21)
}

func TestHandlerPanicIsSurvived(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	in := &inbox{}
	group := "points-" + uuid.NewString()
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: func(_ context.Context, m rocketmq.Message) error {
		if in.add(m) < 3 && string(m.Body) == "bomb" {
			panic("out of cheese")
		}
		return nil
	}}).Start()
	bomb := send(t, p, "t", "bomb")
	other := send(t, p, "t", "other")
	require.Eventually(t, func() bool { return in.times(bomb) == 3 && in.times(other) == 1 }, wait, tick)
	require.Zero(t, sentBack(b, group))
}

// A handler that waits for the database is let go when the consumer stops, and its message is not lost.
func TestStopWhileAHandlerFails(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	id := send(t, p, "t", "x")
	const more = 100 // than are handled at once
	for i := range more {
		send(t, p, "t", body(i))
	}
	group := "points-" + uuid.NewString()
	failed := make(chan struct{}, 10000)
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: func(context.Context, rocketmq.Message) error {
		failed <- struct{}{}
		return errors.New("database is down")
	}})
	c.Start()
	<-failed
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_ = c.Stop(ctx) // the deadline passed, which it may say
	require.Less(t, time.Since(began), wait)
	require.Never(t, func() bool { return sentBack(b, group) > 0 }, 500*time.Millisecond, tick, "a stop spends the retries of messages")
	in := &inbox{}
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: in.collect}).Start()
	require.Eventually(t, func() bool { return in.times(id) > 0 && in.distinct() == 1+more }, wait, tick, "a message was lost")
}

// The handler's context ends when Stop runs out of time, not before.
func TestStopLetsHandlersFinish(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	send(t, p, "t", "x")
	entered, release := make(chan struct{}), make(chan struct{})
	var cancelled atomic.Bool
	group := "points-" + uuid.NewString()
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: func(ctx context.Context, _ rocketmq.Message) error {
		close(entered)
		<-release
		cancelled.Store(ctx.Err() != nil)
		return nil
	}})
	c.Start()
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- c.Stop(context.Background()) }()
	require.Never(t, func() bool { return len(stopped) > 0 }, 200*time.Millisecond, tick, "stop waits for the handler")
	close(release)
	require.NoError(t, <-stopped)
	require.False(t, cancelled.Load())
	requireCommitted(t, b, group, 1)
}
