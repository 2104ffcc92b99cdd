package broker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
)

func messages(t testing.TB, b *broker.Broker, topic string) []broker.Message {
	t.Helper()
	msgs, err := b.AllMessages(topic)
	require.NoError(t, err)
	return msgs
}

func count(b *broker.Broker, topic string) int64 {
	ts, _ := b.Topic(topic)
	return ts.Messages()
}

// ended waits until no half is open. The message of one that was committed is visible a moment earlier.
func ended(t testing.TB, b *broker.Broker) {
	t.Helper()
	eventually(t, func() bool { return b.OpenHalves() == 0 }, "a half stays open")
}

// unchecked leaves halves alone: an END_TRANSACTION that is late is not overtaken by a check.
func unchecked(c *broker.Config) { c.TransactionTimeout = time.Hour }

func TestTransactionCommit(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, unchecked)
	in := &inbox{}
	newConsumer(t, b, "g", "orders", "*", collect(in))
	p := newTxProducer(t, b, "pg", listener{execute: func(*primitive.Message) primitive.LocalTransactionState {
		require.Equal(t, 1, b.OpenHalves(), "the half is stored before the local transaction runs")
		require.Empty(t, messages(t, b, "orders"), "a half is not visible")
		return primitive.CommitMessageState
	}})
	id := sendHalf(t, p, "orders", "hello", "TAGS", "a")
	eventually(t, func() bool { return in.len() == 1 }, "no delivery")
	got := in.msgs[0]
	require.Equal(t, "hello", string(got.Body))
	require.Equal(t, id, got.MsgId)
	require.Equal(t, "pg", got.GetProperty("PGROUP"))
	require.Equal(t, "a", got.GetTags())
	for _, gone := range []string{"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} {
		require.Empty(t, got.GetProperty(gone), "%s belongs to the half store", gone)
	}
	ended(t, b)
	found, err := b.FindMessages("orders", id)
	require.NoError(t, err)
	require.Len(t, found, 1)
}

func TestTransactionRollback(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, unchecked)
	p := newTxProducer(t, b, "pg", listener{execute: always(primitive.RollbackMessageState)})
	sendHalf(t, p, "orders", "never")
	ended(t, b)
	require.Empty(t, messages(t, b, "orders"))
}

func TestUnknownIsCheckedUntilDecided(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	var checks atomic.Int32
	attempts := make(chan string, 16)
	p := newRegisteredTxProducer(t, b, "pg", listener{
		execute: always(primitive.UnkonwnState),
		check: func(m *primitive.MessageExt) primitive.LocalTransactionState {
			attempts <- m.GetProperty("TRANSACTION_CHECK_TIMES")
			if m.Topic != "orders" || string(m.Body) != "later" {
				return primitive.RollbackMessageState
			}
			if checks.Add(1) < 3 {
				return primitive.UnkonwnState
			}
			return primitive.CommitMessageState
		},
	})
	start := time.Now()
	sendHalf(t, p, "orders", "later")
	eventually(t, func() bool { return count(b, "orders") == 1 }, "not delivered")
	require.GreaterOrEqual(t, time.Since(start), 850*time.Millisecond, "timeout + two intervals")
	require.Equal(t, []string{"1", "2", "3"}, []string{<-attempts, <-attempts, <-attempts})
	ended(t, b)
}

func TestChecksAreCountedWithoutProducerThenDiscarded(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) {
		c.TransactionTimeout, c.CheckInterval, c.CheckMax = 100*time.Millisecond, 100*time.Millisecond, 3
		c.Hooks.OnRequest = func(r broker.Request) broker.Action {
			if r.Code == 34 { // no heartbeat registers the producer
				return broker.Action{Code: 1}
			}
			return broker.Action{}
		}
	})
	p := newTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState)})
	id := sendHalf(t, p, "orders", "lost", "KEYS", "o-1")
	eventually(t, func() bool { return count(b, "TRANS_CHECK_MAX_TIME_TOPIC") == 1 }, "not discarded")
	ended(t, b)
	m := messages(t, b, "TRANS_CHECK_MAX_TIME_TOPIC")[0]
	require.Equal(t, id, m.UniqKey)
	require.Equal(t, "o-1", m.Keys)
	require.Equal(t, "lost", string(m.Body))
	require.Equal(t, "orders", m.Properties["REAL_TOPIC"])
	require.NotEmpty(t, m.Properties["REAL_QID"])
	require.Equal(t, "pg", m.Properties["PGROUP"])
	require.Equal(t, "3", m.Properties["TRANSACTION_CHECK_TIMES"])
	require.Zero(t, count(b, "orders"))
}

func TestCheckImmunity(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, unchecked)
	checked := make(chan string, 8)
	p := newRegisteredTxProducer(t, b, "pg", listener{
		execute: always(primitive.UnkonwnState),
		check: func(m *primitive.MessageExt) primitive.LocalTransactionState {
			checked <- string(m.Body)
			return primitive.CommitMessageState
		},
	})
	start := time.Now().Truncate(time.Millisecond) // the unit of times on the wire
	sendHalf(t, p, "orders", "waits for the timeout")
	sendHalf(t, p, "orders", "own immunity", "CHECK_IMMUNITY_TIME_IN_SECONDS", "1")
	require.Equal(t, "own immunity", <-checked)
	require.GreaterOrEqual(t, time.Since(start), time.Second)
	eventually(t, func() bool { return count(b, "orders") == 1 && b.OpenHalves() == 1 }, "not delivered")
}

func TestChecksSurviveRestart(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, unchecked)
	p := newTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState)})
	id := sendHalf(t, p, "orders", "survivor")
	b = brokertest.Restart(t, b, func(c *broker.Config) {
		c.TransactionTimeout, c.CheckMax = 100*time.Millisecond, 100
	})
	require.Equal(t, 1, b.OpenHalves())
	newRegisteredTxProducer(t, b, "pg", listener{}) // commits when asked
	eventually(t, func() bool { return count(b, "orders") == 1 }, "not delivered")
	require.Equal(t, id, messages(t, b, "orders")[0].UniqKey)
}

// A commit that is late names the offsets the half had before it was checked.
// RocketMQ would deliver it and check the re-appended copy again; here it ends
// the half, once.
func TestLateCommitAfterChecksDeliversOnce(t *testing.T) {
	t.Parallel()
	late := make(chan struct{})
	var dropped atomic.Int32
	b := brokertest.Start(t, func(c *broker.Config) {
		c.TransactionTimeout, c.CheckInterval = 50*time.Millisecond, 50*time.Millisecond
		c.CheckMax = 1000
		c.Hooks.OnCheck = func(broker.Check) broker.Action {
			if dropped.Add(1) == 3 {
				close(late)
			}
			return broker.Action{Drop: true}
		}
	})
	p := newRegisteredTxProducer(t, b, "pg", listener{execute: func(*primitive.Message) primitive.LocalTransactionState {
		<-late
		return primitive.CommitMessageState
	}})
	sendHalf(t, p, "orders", "late")
	eventually(t, func() bool { return count(b, "orders") == 1 }, "not delivered")
	ended(t, b)
}

// KeepHalf brings RocketMQ's own fault: a committed half is checked again and a
// second commit delivers a second time.
func TestKeepHalfDeliversTwice(t *testing.T) {
	t.Parallel()
	var kept atomic.Bool
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.KeepHalf = func(string) bool { return kept.CompareAndSwap(false, true) }
	})
	p := newRegisteredTxProducer(t, b, "pg", listener{})
	id := sendHalf(t, p, "orders", "twice")
	eventually(t, func() bool { return count(b, "orders") == 2 }, "no second delivery")
	ended(t, b)
	found, err := b.FindMessages("orders", id)
	require.NoError(t, err)
	require.Len(t, found, 2)
}

func TestHalfAnswerLost(t *testing.T) {
	t.Parallel()
	ctx, giveUp := context.WithCancel(t.Context())
	b := brokertest.Start(t, unchecked, func(c *broker.Config) {
		c.Hooks.OnResponse = func(r broker.Request, _ int) broker.Action {
			if r.Half {
				giveUp() // to the client the same as its time-out
			}
			return broker.Action{Drop: r.Half}
		}
	})
	ran := false
	p := newTxProducer(t, b, "pg", listener{execute: func(*primitive.Message) primitive.LocalTransactionState {
		ran = true
		return primitive.CommitMessageState
	}})
	_, err := p.SendMessageInTransaction(ctx, primitive.NewMessage("orders", []byte("x")))
	require.ErrorContains(t, err, "timeout")
	require.False(t, ran)
	require.Equal(t, 1, b.OpenHalves(), "stored although the client got an error")
}

// The scanner survives a round that fails: the halves of it are asked about later.
func TestScannerSurvivesWriteErrors(t *testing.T) {
	t.Parallel()
	var failures atomic.Int32
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Logger = zap.NewNop()
		c.Hooks.StorageFault = func(op string) error {
			if op == "check" && failures.Add(1) <= 2 {
				return errors.New("disk full")
			}
			return nil
		}
	})
	p := newRegisteredTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState)})
	sendHalf(t, p, "orders", "x")
	eventually(t, func() bool { return count(b, "orders") == 1 }, "not delivered")
	require.Greater(t, failures.Load(), int32(2))
}

// Two producers of one group are asked in turn.
func TestChecksGoRoundRobin(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) { c.TransactionTimeout = 50 * time.Millisecond })
	var asked [2]atomic.Int32
	for i := range asked {
		p := newRegisteredTxProducer(t, b, "pg", listener{
			execute: always(primitive.UnkonwnState),
			check: func(*primitive.MessageExt) primitive.LocalTransactionState {
				asked[i].Add(1)
				return primitive.CommitMessageState
			},
		})
		if i == 1 { // both are registered once the second sends
			for range 10 {
				sendHalf(t, p, "orders", "x")
			}
		}
	}
	eventually(t, func() bool { return count(b, "orders") == 10 }, "not delivered")
	for i := range asked { // one that is slow answers when the other has decided all of them
		eventually(t, func() bool { return asked[i].Load() > 0 }, "producer %d was not asked", i)
	}
}

// A half that is asked about again and again is open all the while, whoever looks.
func TestChecksLeaveTheHalfOpen(t *testing.T) {
	t.Parallel()
	var checks atomic.Int32
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Logger = zap.NewNop()
		c.TransactionTimeout, c.CheckInterval, c.CheckMax = time.Millisecond, time.Millisecond, 10000
		c.Hooks.StorageFault = func(op string) error {
			if op == "check" {
				checks.Add(1)
			}
			return nil
		}
	})
	sendHalf(t, newTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState), check: undecided}), "orders", "x")
	for checks.Load() < 100 {
		require.Equal(t, 1, b.OpenHalves())
	}
}
