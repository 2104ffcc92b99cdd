package rocketmq_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

func TestLag(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		testLag(t, []string{brokertest.Start(t).Addr()}, topic)
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		nameServers := enginetest.RocketMQ(t)
		testLag(t, nameServers, enginetest.Topic(t, nameServers))
	})
}

// The lag is what was sent and not acknowledged: all of it for a new group, nothing once a consumer is through.
func testLag(t *testing.T, nameServers []string, topic string) {
	t.Helper()
	const messages = 10
	none := rocketmq.Credentials{}
	p, err := rocketmq.NewProducer(rocketmq.ProducerConfig{NameServers: nameServers, Group: "plain-" + uuid.NewString(), SendTimeout: wait})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
	for i := range messages {
		sendTo(t, p, topic, "t", body(i))
	}
	group := "points-" + uuid.NewString()
	requireLag := func(want int64) { // brokers count a message some time after they have acknowledged it
		t.Helper()
		require.Eventually(t, func() bool {
			lag, err := rocketmq.Lag(context.Background(), nameServers, none, group, topic)
			return err == nil && lag == want
		}, wait, 10*tick, "the lag does not come to %d", want)
	}
	requireLag(messages)
	in := &inbox{}
	c := newConsumerOf(t, rocketmq.ConsumerConfig{NameServers: nameServers, Group: group, Topic: topic, Handle: in.collect})
	c.Start()
	require.Eventually(t, func() bool { return in.distinct() == messages }, wait, tick)
	requireLag(0) // the client tells its offsets every 5 s
	stop(t, c)
	requireLag(0)
}
