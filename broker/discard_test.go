package broker_test

import (
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/remoting"
)

// discards gives a half up after two checks, soon.
func discards(c *broker.Config) {
	c.TransactionTimeout, c.CheckInterval, c.CheckMax = 50*time.Millisecond, 50*time.Millisecond, 2
}

// A local transaction that outlives every check commits after all: RocketMQ delivers then, besides what a rescuer
// makes of the half in TRANS_CHECK_MAX_TIME_TOPIC.
func TestCommitAfterDiscardDelivers(t *testing.T) {
	t.Parallel()
	for verdict, delivered := range map[primitive.LocalTransactionState]int64{
		primitive.CommitMessageState: 1, primitive.RollbackMessageState: 0,
	} {
		b := brokertest.Start(t, discards)
		p := newTxProducer(t, b, "pg", listener{check: undecided, execute: func(*primitive.Message) primitive.LocalTransactionState {
			eventually(t, func() bool { return count(b, "TRANS_CHECK_MAX_TIME_TOPIC") == 1 && b.DiscardedHalves() == 1 }, "not given up")
			return verdict
		}})
		id := sendHalf(t, p, "orders", "late")
		eventually(t, func() bool { return b.DiscardedHalves() == 0 && count(b, "orders") == delivered }, "the late verdict is not carried out")
		if delivered == 1 {
			require.Equal(t, id, messages(t, b, "orders")[0].UniqKey)
		}
		require.EqualValues(t, 1, count(b, "TRANS_CHECK_MAX_TIME_TOPIC"), "what was given up stays there")
	}
}

// What was given up outlives a restart, and ends by age.
func TestDiscardedHalfEndsByAge(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, discards)
	p := newTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState), check: undecided})
	sendHalf(t, p, "orders", "x")
	eventually(t, func() bool { return b.DiscardedHalves() == 1 }, "not given up")
	b = brokertest.Restart(t, b)
	require.Equal(t, 1, b.DiscardedHalves())
	require.Zero(t, b.OpenHalves())
	b = brokertest.Restart(t, b, func(c *broker.Config) { c.Retention = 100 * time.Millisecond })
	eventually(t, func() bool { return b.DiscardedHalves() == 0 }, "kept for ever")
}

// As at RocketMQ's broker, TRANS_CHECK_MAX_TIME_TOPIC has one queue, can be read, and takes nothing from clients.
func TestDiscardedTopicTakesNothingFromClients(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, discards)
	queues, err := remoting.Queues(t.Context(), b.Addr(), "TRANS_CHECK_MAX_TIME_TOPIC", remoting.Credentials{})
	require.NoError(t, err)
	require.Len(t, queues, 1)
	a, err := remoting.AskWithBody(t.Context(), b.Addr(), remoting.CodeSend, map[string]string{
		"producerGroup": "pg", "topic": "TRANS_CHECK_MAX_TIME_TOPIC", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
		"flag": "0", "properties": "", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
	}, []byte("x"), remoting.Credentials{})
	require.NoError(t, err)
	require.NotZero(t, a.Code)
	require.Zero(t, count(b, "TRANS_CHECK_MAX_TIME_TOPIC"))
}
