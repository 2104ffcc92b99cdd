package rocketmq_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

// soon is below the 30 s after which the client itself gives up a pull that waits at a broker that died.
const soon = 25 * time.Second

// restarts counts how often a consumer said that it starts again.
func restarts(logs *observer.ObservedLogs) int {
	return logs.FilterMessageSnippet("the consumer starts again").Len()
}

// A broker that was away and is back is consumed from at once, again and again, and nothing is lost.
func TestBrokerRestart(t *testing.T) {
	t.Parallel()
	b, watched := startWatched(t)
	core, logs := observer.New(zap.InfoLevel)
	in := &inbox{}
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Handle: in.collect, Logger: zap.New(core)})
	c.Start()
	first := send(t, newProducer(t, b), "t", "x")
	require.Eventually(t, func() bool { return in.times(first) == 1 }, wait, tick)
	watched()
	require.NoError(t, c.Ready())
	for n := 1; n <= 2; n++ {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		require.NoError(t, b.Stop(ctx))
		cancel()
		require.Eventually(t, func() bool { return c.Ready() != nil }, wait, tick, "it does not say that the broker is away")
		if n == 1 { // the second time the client may be in the middle of being replaced
			require.ErrorContains(t, c.Ready(), b.Addr())
		}
		b = brokertest.Restart(t, b)
		back := time.Now()
		id := send(t, newProducer(t, b), "t", "x")
		require.Eventually(t, func() bool { return in.times(id) > 0 }, wait, tick)
		t.Logf("restart %d: consumed %v after the broker was back", n, time.Since(back))
		require.Less(t, time.Since(back), soon)
		// The client may have been quicker by itself.
		require.Eventually(t, func() bool { return c.Ready() == nil && (n > 1 || restarts(logs) == 1) }, wait, tick)
	}
}

// startWatched starts a broker, and returns what waits until a consumer has its connection for watching it: whoever has
// just begun to consume may not have looked at it yet, and would not notice that it is away for a moment.
func startWatched(t *testing.T) (b *broker.Broker, watched func()) {
	t.Helper()
	var asked atomic.Bool
	b = brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnRequest = func(r broker.Request) broker.Action {
			if r.Code == remoting.CodeMaxOffset {
				asked.Store(true)
			}
			return broker.Action{}
		}
	})
	return b, func() {
		t.Helper()
		require.Eventually(t, asked.Load, wait, tick, "the consumer does not watch the broker")
	}
}

// Stop comes while the client is being replaced, which waits for a handler: the handler ends in peace.
func TestStopWhileTheClientIsReplaced(t *testing.T) {
	t.Parallel()
	b, watched := startWatched(t)
	entered, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	var cancelled atomic.Bool
	core, logs := observer.New(zap.InfoLevel)
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Logger: zap.New(core), Handle: func(ctx context.Context, _ rocketmq.Message) error {
		if calls.Add(1) == 1 {
			close(entered)
		}
		<-release
		cancelled.Store(ctx.Err() != nil)
		return nil
	}})
	c.Start()
	send(t, newProducer(t, b), "t", "x")
	<-entered
	watched()
	brokertest.Restart(t, b)
	require.Eventually(t, func() bool { return restarts(logs) == 1 }, wait, tick, "the consumer does not notice")
	stopped := make(chan error, 1)
	go func() { stopped <- c.Stop(context.Background()) }()
	require.Never(t, func() bool { return len(stopped) > 0 }, 200*time.Millisecond, tick, "stop waits for the handler")
	close(release)
	require.NoError(t, <-stopped)
	require.False(t, cancelled.Load())
}

// Stop at any moment of a broker's absence and return.
func TestStopWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 150 * time.Millisecond, 250 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			b := brokertest.Start(t)
			in := &inbox{}
			c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Handle: in.collect})
			c.Start()
			id := send(t, newProducer(t, b), "t", "x")
			require.Eventually(t, func() bool { return in.times(id) == 1 }, wait, tick)
			brokertest.Restart(t, b)
			<-time.After(after) // the moment is what varies; none is waited for
			began := time.Now()
			stop(t, c)
			require.Less(t, time.Since(began), soon)
		})
	}
	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		b, watched := startWatched(t)
		in := &inbox{}
		c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Handle: in.collect})
		c.Start()
		id := send(t, newProducer(t, b), "t", "x")
		require.Eventually(t, func() bool { return in.times(id) == 1 }, wait, tick)
		watched()
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		require.NoError(t, b.Stop(ctx))
		require.Eventually(t, func() bool { return c.Ready() != nil }, wait, tick)
		began := time.Now()
		stop(t, c)
		require.Less(t, time.Since(began), soon)
	})
}

// A handler that is busy for long keeps its client, which goes on by itself when it has given its pulls up.
func TestBusyHandlersKeepTheClient(t *testing.T) {
	t.Parallel()
	b, watched := startWatched(t)
	core, logs := observer.New(zap.InfoLevel)
	entered, release := make(chan struct{}), make(chan struct{})
	in := &inbox{}
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{
		Group: "points-" + uuid.NewString(), Logger: zap.New(core),
		Handle: func(_ context.Context, m rocketmq.Message) error {
			if in.add(m) == 1 && string(m.Body) == "slow" {
				close(entered)
				<-release
			}
			return nil
		},
	})
	c.Start()
	send(t, newProducer(t, b), "t", "slow")
	<-entered
	watched()
	b = brokertest.Restart(t, b)
	require.Eventually(t, func() bool { return logs.FilterMessageSnippet("handlers are busy").Len() == 1 }, wait, tick)
	close(release)
	id := send(t, newProducer(t, b), "t", "quick")
	require.Eventually(t, func() bool { return in.times(id) > 0 }, wait, tick, "the client does not go on")
}

// Something on the way that closes connections again and again, while the broker is well, does not make a new client
// each time.
func TestConnectionsCutAgainAndAgain(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	wire := enginetest.NewRocketMQProxy(t, []string{b.Addr()})
	core, logs := observer.New(zap.InfoLevel)
	in := &inbox{}
	c := newConsumerOf(t, rocketmq.ConsumerConfig{NameServers: wire.NameServers(), Topic: topic, Handle: in.collect, Logger: zap.New(core)})
	c.Start()
	p := newProducer(t, b)
	first := send(t, p, "t", "x")
	require.Eventually(t, func() bool { return in.times(first) == 1 && c.Ready() == nil }, wait, tick)
	const cuts = 8
	began := time.Now()
	for range cuts {
		wire.Broker(t).Cut()
		require.Eventually(t, func() bool { return c.Ready() != nil }, wait, tick, "it is not noticed")
		wire.Broker(t).Pass()
		require.Eventually(t, func() bool { return c.Ready() == nil }, wait, tick)
	}
	// The first at once, the second 10 s later, the third 20 s after that.
	require.LessOrEqual(t, restarts(logs), 1+int(time.Since(began)/(10*time.Second)))
	last := send(t, p, "t", "x")
	require.Eventually(t, func() bool { return in.times(last) > 0 }, wait, tick)
}

// The broker may take a consumer's former client for a member of its group for two minutes: a heartbeat that it handled
// too late. That one's queues do not stand still meanwhile.
func TestFormerClientGetsNoQueues(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	in := &inbox{}
	const group = "points-former"
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: in.collect})
	joined(t, b, group, clientIP(t, b)+"@"+c.InstanceName(0))
	c.Start()
	p := newProducer(t, b)
	var ids []string
	for range 16 { // to every queue
		ids = append(ids, send(t, p, "t", "x"))
	}
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(ids, func(id string) bool { return in.times(id) == 0 })
	}, wait, tick, "queues stand still")
}

// joined makes a client a member of a consumer group until the test ends, and returns the group's members.
func joined(t *testing.T, b *broker.Broker, group, clientID string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	conn, err := remoting.Dial(ctx, b.Addr(), remoting.Credentials{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	body, err := json.Marshal(map[string]any{"clientID": clientID, "producerDataSet": []any{}, "consumerDataSet": []any{map[string]any{
		"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
		"subscriptionDataSet": []any{map[string]any{"topic": topic, "subString": "*"}},
	}}})
	require.NoError(t, err)
	_, err = conn.AskWithBody(ctx, 34, nil, body) // HEART_BEAT
	require.NoError(t, err)
	var members struct{ ConsumerIDList []string }
	for len(members.ConsumerIDList) == 0 { // what comes first may be the news that the group has changed
		a, err := conn.Ask(ctx, 38, map[string]string{"consumerGroup": group}) // GET_CONSUMER_LIST_BY_GROUP
		require.NoError(t, err)
		if len(a.Body) > 0 {
			require.NoError(t, json.Unmarshal(a.Body, &members))
		}
	}
	return members.ConsumerIDList
}

// clientIP is what the client puts before its instance name.
func clientIP(t *testing.T, b *broker.Broker) string {
	t.Helper()
	const group = "points-somebody"
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: (&inbox{}).collect}).Start()
	require.NoError(t, b.WaitConsumer(t.Context(), group))
	members := joined(t, b, group, "guest")
	require.Len(t, members, 2)
	ip, _, found := strings.Cut(slices.DeleteFunc(members, func(m string) bool { return m == "guest" })[0], "@")
	require.True(t, found)
	return ip
}
