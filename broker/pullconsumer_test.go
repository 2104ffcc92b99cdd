package broker_test

import (
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
)

// A rescuer reads given-up halves by pull, from an offset it keeps itself. The
// topic has a route before the first of them.
func TestPullConsumerReadsDiscardedHalves(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		t.Skip("the client's PullFrom races with its own background pull (pull_consumer.go:521 and :865)")
	}
	b := brokertest.Start(t, func(c *broker.Config) {
		c.TransactionTimeout, c.CheckInterval, c.CheckMax = 20*time.Millisecond, 20*time.Millisecond, 1
	})
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{b.Addr()}), consumer.WithGroupName("rescue"), consumer.WithInstance(unique()))
	require.NoError(t, err)
	require.NoError(t, c.Assign("TRANS_CHECK_MAX_TIME_TOPIC", []*primitive.MessageQueue{{Topic: "TRANS_CHECK_MAX_TIME_TOPIC", BrokerName: "halfbox"}}))
	require.NoError(t, c.Start())
	t.Cleanup(func() { require.NoError(t, c.Shutdown()) })
	mqs, err := c.GetTopicRouteInfo("TRANS_CHECK_MAX_TIME_TOPIC")
	require.NoError(t, err)
	require.Len(t, mqs, 1)
	p := newTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState), check: undecided})
	ids := []string{sendHalf(t, p, "orders", "1"), sendHalf(t, p, "orders", "2")}
	eventually(t, func() bool { return count(b, "TRANS_CHECK_MAX_TIME_TOPIC") == 2 }, "not given up")
	res, err := c.PullFrom(within(t), mqs[0], 0, 32)
	require.NoError(t, err)
	require.Equal(t, primitive.PullFound, res.Status)
	require.EqualValues(t, 2, res.NextBeginOffset)
	for i, m := range res.GetMessageExts() {
		require.Equal(t, ids[i], m.GetProperty("UNIQ_KEY"))
		require.Equal(t, "orders", m.GetProperty("REAL_TOPIC"))
	}
	offset, err := c.OffsetForTimestamp(mqs[0], time.Now().Add(time.Hour).UnixMilli())
	require.NoError(t, err)
	require.EqualValues(t, 2, offset)
}
