package txmsg_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/txmsg"
)

// Bad input and faults of the broker, and the test of each:
//
//	reserved header, separator bytes, sizes       TestBadEventsAreRefusedBeforeAnythingIsSent
//	the largest properties there may be           TestLargestPropertiesArrive
//	name server unknown                           TestNameServerUnknown
//	host name without a scheme                    TestNameServerByHostName
//	broker accepts TCP and never answers          TestBrokerThatNeverAnswers, TestSilentBrokerAtTheStart
//	broker answers after the deadline             TestBrokerThatAnswersLate
//	stored, but not safely (three statuses)       TestStatusesAreNotErrors
//	route without write queues                    TestRouteWithoutWriteQueues
//	topic that needs creating                     TestTopicThatNeedsCreating, TestTopicThatIsNotCreated
//	SYSTEM_BUSY and flow control                  TestOverloadedBroker
//	permission denied                             TestPermissionDenied, TestTopicBecomesReadOnly
//	born time 5 minutes ahead and behind          TestBornTimeIsWrong
//	panic in the local function                   TestPanicLeavesNothingInDoubt
//	two services in one process                   TestTwoGroupsInOneProcess

const codeFlowControl, codeNoPermission = 215, 16

// publish publishes an event whose local transaction writes nothing.
func (n *node) publish(t testing.TB, change ...func(*halfbox.Event)) (halfbox.Receipt, error) {
	t.Helper()
	ev := orderEvent(t)
	for _, c := range change {
		c(&ev)
	}
	return n.producer.PublishInTx(t.Context(), ev, func(*gorm.DB, halfbox.Attempt) error { return nil })
}

// Nothing is sent, nothing is written, and the fallback is not asked: it could not deliver these either.
func TestBadEventsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	n := embedded(t, sqliteAt(t)).node(t, nodeOptions{fallback: true, producer: func(c *txmsg.Config) {
		c.Hooks.BeforeHalf = func() { sent.Add(1) }
		c.MaxBody = 64 << 10
	}})
	header := func(name, value string) func(*halfbox.Event) {
		return func(ev *halfbox.Event) { ev.Headers = map[string]string{name: value} }
	}
	for name, tc := range map[string]struct {
		change func(*halfbox.Event)
		says   string
		strict bool // only where RocketMQ is the destination
	}{
		"delay":                    {header("DELAY", "3"), "reserved", false},
		"timer":                    {header("TIMER_DELAY_SEC", "3"), "reserved", false},
		"half message mark":        {header("TRAN_MSG", "false"), "reserved", false},
		"producer group":           {header("PGROUP", "other"), "reserved", false},
		"real topic":               {header("REAL_TOPIC", "other"), "reserved", false},
		"warm-up":                  {header("__halfbox_warmup", "true"), "reserved", false},
		"separator in a header":    {header("tenant", "a\x01b"), "control character", false},
		"next property":            {header("tenant", "a\x02DELAY\x013"), "control character", false},
		"separator in the subject": {func(ev *halfbox.Event) { ev.Subject = "a\x02b" }, "control character", false},
		"separator in the type":    {func(ev *halfbox.Event) { ev.Type = "a\x01b" }, "control character", false},
		"properties too large":     {header("tenant", strings.Repeat("x", halfbox.MaxProperties)), "the limit is", false},
		"body too large":           {func(ev *halfbox.Event) { ev.Data = []byte(`"` + strings.Repeat("x", 4<<20) + `"`) }, "the limit is", false},
		"topic name":               {func(ev *halfbox.Event) { ev.Destination = "no such topic" }, "letters, digits", true},
		"system topic":             {func(ev *halfbox.Event) { ev.Destination = "RMQ_SYS_TRANS_HALF_TOPIC" }, "belongs to the broker", true},
	} {
		ran := func(*gorm.DB, halfbox.Attempt) error {
			t.Errorf("%s: the local transaction ran", name)
			return nil
		}
		ev := orderEvent(t)
		tc.change(&ev)
		_, err := n.producer.PublishInTx(t.Context(), ev, ran)
		require.ErrorIs(t, err, halfbox.ErrRolledBack, name)
		require.NotErrorIs(t, err, halfbox.ErrUnavailable, name)
		require.ErrorContains(t, err, tc.says, name)
		if !tc.strict { // the other strategy says the same
			_, err = n.cfg.Fallback.PublishInTx(t.Context(), ev, ran)
			require.ErrorIs(t, err, halfbox.ErrRolledBack, name)
			require.ErrorContains(t, err, tc.says, name)
		}
	}
	require.Zero(t, sent.Load())
	require.Zero(t, n.broker().OpenHalves())
}

// leavesNoRow answers for local transactions that write nothing, which no table can.
func leavesNoRow(checkback.Half) (checkback.Answer, bool) { return checkback.Commit, true }

func (n *node) broker() *broker.Broker { return n.world.broker }

// What is allowed arrives, up to the last byte: client and broker add their own properties to it.
func TestLargestPropertiesArrive(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		n := w.node(t, nodeOptions{checker: leavesNoRow})
		receipt, err := n.publish(t, func(ev *halfbox.Event) {
			ev.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
			used := len(ev.Type) + len(ev.Subject) + len(ev.TraceParent) + 6
			ev.Headers = map[string]string{"tenant": strings.Repeat("x", halfbox.MaxProperties-used-len("tenant")-2)}
		})
		require.NoError(t, err)
		n.requireDelivered(t, receipt.MsgID, 1)
		if b := n.broker(); b != nil {
			found, err := b.FindMessages(n.topic, receipt.MsgID)
			require.NoError(t, err)
			require.Equal(t, byte('x'), found[0].Properties["tenant"][0])
			require.Equal(t, halfbox.ContentType, found[0].Properties[halfbox.HeaderContentType])
			require.NotEmpty(t, found[0].Properties[halfbox.HeaderTraceParent])
		}
	})
}

const shortHalf = 700 * time.Millisecond

// firstHeartbeatSeen is when a broker that is well has had the first heartbeat, counted from Start.
const firstHeartbeatSeen = 1200 * time.Millisecond

// FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT come without an error, from a half message that was
// stored. The local transaction does not run, and the half message is rolled back: at once, or, when that is lost, by
// its check.
func TestStatusesAreNotErrors(t *testing.T) {
	t.Parallel()
	for code, name := range map[int]string{10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"} {
		for how, endLost := range map[string]bool{"rolled back at once": false, "rollback lost": true} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				var armed atomic.Bool
				armed.Store(true)
				var checks atomic.Int32
				w := embedded(t, sqliteAt(t), func(c *broker.Config) {
					c.Hooks.OnResponse = func(r broker.Request, _ int) broker.Action {
						return onHalf(&armed, broker.Action{Code: code})(r)
					}
					c.Hooks.OnRequest = func(r broker.Request) broker.Action {
						return broker.Action{Drop: endLost && r.Code == codeEndTransaction && r.Ext["fromTransactionCheck"] != "true"}
					}
					c.Hooks.OnCheck = func(broker.Check) broker.Action { checks.Add(1); return broker.Action{} }
					if !endLost {
						c.TransactionTimeout = time.Hour
					}
				})
				n := w.node(t, nodeOptions{})
				n.awaitReady(t)
				_, _, err := n.service(t).Create(t.Context(), request)
				requireUnavailable(t, err)
				require.ErrorIs(t, err, txmsg.ErrUnsafe)
				require.ErrorContains(t, err, name)
				orders, _ := n.rows(t)
				require.Empty(t, orders, "the local transaction ran")
				require.Eventually(t, func() bool { return w.broker.OpenHalves() == 0 }, wait, tick, "a half message stays in doubt")
				all, err := w.broker.AllMessages(topic)
				require.NoError(t, err)
				require.Empty(t, all)
				require.Equal(t, endLost, checks.Load() > 0)

				armed.Store(false)
				_, _, err = n.service(t).Create(t.Context(), request)
				require.NoError(t, err, "the next one is stored safely")
			})
		}
	}
}

// readOnly takes the right to be written from a topic, or makes it so.
func readOnly(t testing.TB, w world, name string) {
	t.Helper()
	brokers, err := remoting.Masters(t.Context(), w.nameServers[0], remoting.Credentials{})
	require.NoError(t, err)
	for _, addr := range brokers {
		a, err := remoting.Ask(t.Context(), addr, remoting.CodeUpdateTopic, map[string]string{
			"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
			"perm": "4", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
		}, remoting.Credentials{})
		require.NoError(t, err)
		require.Equal(t, remoting.CodeOK, a.Code, a.Remark)
	}
}

func TestRouteWithoutWriteQueues(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		name := enginetest.Name(t, "readonly")
		readOnly(t, w, name)
		require.Eventually(t, func() bool {
			has, err := remoting.Route(t.Context(), w.nameServers[0], name, remoting.Credentials{})
			return err == nil && len(has) > 0
		}, wait, tick)
		n := w.node(t, nodeOptions{})
		n.awaitReady(t)
		_, err := n.publish(t, func(ev *halfbox.Event) { ev.Destination = name })
		requireUnavailable(t, err)
		require.ErrorContains(t, err, "route info not found")
		_, err = n.publish(t)
		require.NoError(t, err, "other topics are not concerned")
	})
}

// A topic that nobody has made yet is made by the first message, where the broker does that.
func TestTopicThatNeedsCreating(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		name := enginetest.Name(t, "made")
		n := w.node(t, nodeOptions{checker: leavesNoRow, producer: func(c *txmsg.Config) { c.Topic = name }})
		n.awaitReady(t)
		receipt, err := n.publish(t)
		require.NoError(t, err)
		require.NotEmpty(t, receipt.MsgID)
		require.Eventually(t, func() bool {
			has, err := remoting.Route(t.Context(), w.nameServers[0], name, remoting.Credentials{})
			return err == nil && len(has) > 0
		}, wait, 10*tick, "the topic exists now")
	})
}

// Where the broker makes none, orders are unavailable (or go to the outbox) until somebody makes it; nothing has to be
// restarted then.
func TestTopicThatIsNotCreated(t *testing.T) {
	t.Parallel()
	w := embedded(t, sqliteAt(t), func(c *broker.Config) { c.DisableTopicAutoCreate = true })
	n := w.node(t, nodeOptions{producer: func(c *txmsg.Config) { c.HalfTimeout = shortHalf }})
	_, err := n.publish(t)
	requireUnavailable(t, err)
	require.Error(t, n.producer.Ready())
	require.NoError(t, remoting.EnsureTopic(t.Context(), w.nameServers[0], topic, 4, remoting.Credentials{}))
	n.awaitReady(t)
	n.requireRecovered(t)
}

// The client does not try again, and nor do we: the fallback is faster than waiting for a broker that sheds load.
func TestOverloadedBroker(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"SYSTEM_BUSY": codeSystemBusy, "flow control": codeFlowControl} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, armed := answering(t, code)
			_, _, err := n.service(t).Create(t.Context(), request)
			requireUnavailable(t, err)
			require.ErrorContains(t, err, "overloaded")
			orders, tombstones := n.rows(t)
			require.Empty(t, orders)
			require.Empty(t, tombstones)
			armed.Store(false)
			n.requireRecovered(t)
		})
	}
}

func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	n, armed := answering(t, codeNoPermission)
	_, _, err := n.service(t).Create(t.Context(), request)
	requireUnavailable(t, err)
	require.ErrorContains(t, err, "credentials may not write")
	armed.Store(false)
	n.requireRecovered(t)
}

// answering is an instance whose broker refuses half messages with a code while armed.
func answering(t testing.TB, code int) (*node, *atomic.Bool) {
	armed := &atomic.Bool{}
	armed.Store(true)
	w := embedded(t, sqliteAt(t), func(c *broker.Config) {
		c.Hooks.OnRequest = onHalf(armed, broker.Action{Code: code, Remark: "injected"})
	})
	return w.node(t, nodeOptions{}), armed
}

// The client goes on with the route it has. The in-process broker refuses the half message then; RocketMQ leaves it to the
// client, which looks at the route again within 30 s.
func TestTopicBecomesReadOnly(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		n := w.node(t, nodeOptions{})
		n.awaitReady(t)
		_, err := n.publish(t)
		require.NoError(t, err)
		readOnly(t, w, n.topic)
		require.Eventually(t, func() bool { _, err = n.publish(t); return err != nil }, time.Minute, 20*tick)
		requireUnavailable(t, err)
	})
}

// The clock of a service is 5 minutes wrong. Ahead: the broker asks at once, and the checker takes the half message for
// young. Behind: it asks at once too, and the checker takes it for old, in the middle of the local transaction. One
// order and one message come of it either way.
func TestBornTimeIsWrong(t *testing.T) {
	t.Parallel()
	for name, shift := range map[string]time.Duration{"ahead": 5 * time.Minute, "behind": -5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onWorlds(t, func(t *testing.T, w world) {
				proxy := enginetest.NewRocketMQProxy(t, w.nameServers)
				proxy.ShiftBornTime(shift)
				w.nameServers = proxy.NameServers()
				var n *node
				n = w.node(t, nodeOptions{producer: func(c *txmsg.Config) {
					var first atomic.Bool
					c.Hooks.BeforeLocalCommit = func() {
						if first.CompareAndSwap(false, true) {
							n.expose(t, atLeast(1)) // the local transaction is slower than the check
						}
					}
				}})
				n.awaitReady(t)
				began := time.Now()
				o, _, err := n.service(t).Create(t.Context(), request)
				require.NoError(t, err)
				n.requireOne(t, o)
				n.mu.Lock()
				born := n.halves[0].BornAt
				n.mu.Unlock()
				require.WithinDuration(t, began.Add(shift), born, time.Minute, "the proxy did not rewrite the time")
			})
		})
	}
}

// A panic is the caller's, with its own value, and the broker is told at once: its check is an hour away.
func TestPanicLeavesNothingInDoubt(t *testing.T) {
	t.Parallel()
	w := embedded(t, sqliteAt(t), func(c *broker.Config) { c.TransactionTimeout = time.Hour })
	n := w.node(t, nodeOptions{fallback: true})
	n.awaitReady(t)
	value := errors.New("out of cheese")
	ran := 0
	require.PanicsWithValue(t, value, func() {
		_, _ = n.producer.PublishInTx(t.Context(), orderEvent(t), func(*gorm.DB, halfbox.Attempt) error {
			ran++
			panic(value)
		})
	})
	require.Equal(t, 1, ran, "neither a second attempt nor the fallback runs it again")
	require.Eventually(t, func() bool { return w.broker.OpenHalves() == 0 }, wait, tick)
	require.Zero(t, n.producer.Attempts())
	// The outbox passes it on alike.
	require.PanicsWithValue(t, value, func() {
		_, _ = n.cfg.Fallback.PublishInTx(t.Context(), orderEvent(t), func(*gorm.DB, halfbox.Attempt) error { panic(value) })
	})
	n.requireRecovered(t)
}

// Clients that share an instance name share one connection, and the second group gets no checks.
func TestTwoGroupsInOneProcess(t *testing.T) {
	t.Parallel()
	lost := errors.New("injected: connection lost")
	onWorlds(t, func(t *testing.T, w world) {
		var nodes []*node
		for range 2 {
			var armed atomic.Bool
			n := w.node(t, nodeOptions{hooks: database.Hooks{After: func(op database.Op, _ string) error {
				if op == database.OpCommit && armed.CompareAndSwap(true, false) {
					return lost
				}
				return nil
			}}})
			n.awaitReady(t)
			armed.Store(true)
			nodes = append(nodes, n)
		}
		for i, n := range nodes {
			_, _, err := n.service(t).Create(context.Background(), request)
			require.ErrorIs(t, err, halfbox.ErrUnknown)
			orders, _ := n.rows(t)
			n.requireDelivered(t, orders[i].MsgID, 1)
			require.Equal(t, []string{orders[i].MsgID}, n.asked(), "each is asked about its own half messages only")
		}
	})
}
