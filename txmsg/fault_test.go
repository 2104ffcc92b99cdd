package txmsg_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/txmsg"
)

// The request codes of RocketMQ's remoting protocol that these tests meddle with.
const (
	codeEndTransaction = 37
	codeSystemBusy     = 2
	codeIllegal        = 13
)

// service returns an order service whose only strategy is the rig's producer.
func (r *rig) service(t testing.TB) *order.Service {
	t.Helper()
	s, err := order.NewService(order.Config{
		DB: r.db, Publishers: map[halfbox.Delivery]order.Publisher{halfbox.DeliveryTxmsg: r.producer}, Default: halfbox.DeliveryTxmsg,
	})
	require.NoError(t, err)
	return s
}

type tableRow struct{ OrderNo, MsgID, Status string }

// rows reads t_order, tombstones included.
func (r *rig) rows(t testing.TB) (orders, tombstones []tableRow) {
	t.Helper()
	var all []tableRow
	require.NoError(t, r.db.Read.Raw("SELECT order_no, msg_id, status FROM t_order ORDER BY id").Scan(&all).Error)
	for _, row := range all {
		if row.Status == string(order.StatusVoid) {
			tombstones = append(tombstones, row)
		} else {
			orders = append(orders, row)
		}
	}
	return orders, tombstones
}

func (r *rig) messages(t testing.TB) []broker.Message {
	t.Helper()
	all, err := r.broker.AllMessages(topic)
	require.NoError(t, err)
	return all
}

// requireSettled waits until the broker has no open half message, then checks that the topic holds exactly the
// committed orders, each once.
func (r *rig) requireSettled(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return r.broker.OpenHalves() == 0 }, wait, tick, "half messages stay open")
	want, _ := r.rows(t)
	got := map[string]int{}
	for _, m := range r.messages(t) {
		got[m.UniqKey]++
	}
	for _, row := range want {
		require.Equal(t, 1, got[row.MsgID], "order %s, message %s", row.OrderNo, row.MsgID)
	}
	require.Len(t, got, len(want))
}

// onHalf makes a hook that acts on half messages while it is armed.
func onHalf(armed *atomic.Bool, act broker.Action) func(broker.Request) broker.Action {
	return func(r broker.Request) broker.Action {
		if r.Half && armed.Load() {
			return act
		}
		return broker.Action{}
	}
}

// storing counts the half messages that the broker has stored, and acts on their answers while it is armed.
func storing(stored *atomic.Int32, armed *atomic.Bool, act broker.Action) func(broker.Request, int) broker.Action {
	return func(r broker.Request, code int) broker.Action {
		if r.Half && code == 0 {
			stored.Add(1)
		}
		return onHalf(armed, act)(r)
	}
}

var request = order.CreateRequest{UserID: 7, AmountCents: 9990}

// create makes an order as soon as one can be made: half messages whose deadline is short for the sake of a fault may
// miss it without one.
func create(t testing.TB, s *order.Service) (o order.Order) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		o, _, err = s.Create(t.Context(), request)
		return err == nil
	}, 2*wait, 10*tick)
	return o
}

// startPeer starts another instance of the service. It is asked about half messages while the rig's own producer, whose
// connection was cut, waits for its next heartbeat.
func (r *rig) startPeer(t testing.TB) {
	t.Helper()
	cfg := r.cfg
	cfg.Registerer = nil
	(&rig{producer: startProducer(t, cfg)}).awaitReady(t)
}

func requireUnavailable(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, halfbox.ErrUnavailable)
}

func TestMessageIsFoundByEveryId(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	o, _, err := r.service(t).Create(t.Context(), request)
	require.NoError(t, err)
	r.requireSettled(t)
	m := r.messages(t)[0]
	require.Equal(t, o.MsgID, m.UniqKey)
	require.Equal(t, o.OrderNo, m.Keys)
	require.Equal(t, order.EventCreated, m.Tags)
}

// An order costs one INSERT between BEGIN and COMMIT, and nothing else: its row is the transaction's record.
func TestStatementsOfAnOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var statements []string
	r := newRig(t, rigOptions{hooks: database.Hooks{Before: func(_ database.Op, query string) error {
		mu.Lock()
		defer mu.Unlock()
		statements = append(statements, fmt.Sprintf("%.19s", query))
		return nil
	}}})
	s := r.service(t)
	mu.Lock()
	statements = nil
	mu.Unlock()
	_, _, err := s.Create(t.Context(), request)
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"BEGIN", "INSERT INTO t_order", "COMMIT"}, statements)
}

func TestHalfRefused(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	armed.Store(true)
	r := newRig(t, rigOptions{broker: func(c *broker.Config) {
		c.Hooks.OnRequest = onHalf(&armed, broker.Action{Code: codeSystemBusy, Remark: "busy"})
	}})
	s := r.service(t)
	_, _, err := s.Create(t.Context(), request)
	requireUnavailable(t, err)
	orders, tombstones := r.rows(t)
	require.Empty(t, orders)
	require.Empty(t, tombstones)

	armed.Store(false)
	_, _, err = s.Create(t.Context(), request)
	require.NoError(t, err)
	r.requireSettled(t)
}

func TestHalfTooLarge(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{producer: func(c *txmsg.Config) { c.MaxBody = 100 }})
	_, _, err := r.service(t).Create(t.Context(), request)
	require.ErrorIs(t, err, txmsg.ErrTooLarge)
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.NotErrorIs(t, err, halfbox.ErrUnavailable, "another place to store it would not help")

	var armed atomic.Bool
	armed.Store(true)
	r = newRig(t, rigOptions{broker: func(c *broker.Config) {
		c.Hooks.OnRequest = onHalf(&armed, broker.Action{Code: codeIllegal, Remark: "the message body size over max value"})
	}})
	_, _, err = r.service(t).Create(t.Context(), request)
	require.ErrorIs(t, err, txmsg.ErrTooLarge)
}

// A half message whose acknowledgement is lost is stored: its check must roll it back, and nothing else may run.
func TestHalfAnswerLost(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]broker.Action{
		"lost": {Drop: true}, "late": {Delay: 3 * time.Second}, "connection cut": {Disconnect: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			var stored atomic.Int32
			armed.Store(true)
			r := newRig(t, rigOptions{
				broker:   func(c *broker.Config) { c.Hooks.OnResponse = storing(&stored, &armed, act) },
				producer: func(c *txmsg.Config) { c.HalfTimeout = time.Second },
			})
			r.awaitReady(t)
			if act.Disconnect {
				r.startPeer(t)
			}
			s := r.service(t)
			_, _, err := s.Create(t.Context(), request)
			requireUnavailable(t, err)
			orders, _ := r.rows(t)
			require.Empty(t, orders)
			require.Eventually(t, func() bool { return stored.Load() == 1 }, wait, tick)
			r.requireSettled(t)
			_, tombstones := r.rows(t)
			require.Len(t, tombstones, 1, "the check voided the stored half")

			armed.Store(false)
			create(t, s)
			r.requireSettled(t)
		})
	}
}

// A caller whose deadline has passed costs nobody the connection, by which the broker asks.
func TestCallerIsLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.awaitReady(t)
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err := r.producer.PublishInTx(late, orderEvent(t), failing)
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Never(t, func() bool { return !r.broker.HasProducer(r.cfg.Group) }, 300*time.Millisecond, tick)
	require.Zero(t, r.broker.OpenHalves())
}

// END_TRANSACTION is never acknowledged: when it is lost the check repairs it, both ways.
func TestEndTransactionLost(t *testing.T) {
	t.Parallel()
	var asking atomic.Bool
	r := newRig(t, rigOptions{broker: func(c *broker.Config) {
		c.Hooks.OnRequest = func(r broker.Request) broker.Action {
			return broker.Action{Drop: r.Code == codeEndTransaction && r.Ext["fromTransactionCheck"] != "true"}
		}
		c.Hooks.OnCheck = func(broker.Check) broker.Action { return broker.Action{Drop: !asking.Load()} }
	}})
	s := r.service(t)
	_, _, err := s.Create(t.Context(), request)
	require.NoError(t, err)
	_, err = r.producer.PublishInTx(t.Context(), orderEvent(t), failing)
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.Equal(t, 2, r.broker.OpenHalves())
	asking.Store(true)
	r.requireSettled(t)
	orders, tombstones := r.rows(t)
	require.Len(t, orders, 1)
	require.Len(t, tombstones, 1)
}

// A check that comes between the acknowledgement and the local transaction voids the attempt; the local transaction
// then meets the tombstone, and one new attempt follows.
func TestCheckBeforeLocalTransaction(t *testing.T) {
	t.Parallel()
	var r *rig
	var first sync.Once
	r = newRig(t, rigOptions{producer: func(c *txmsg.Config) {
		c.Hooks.AfterHalf = func() { first.Do(func() { r.expose(t, contains(checkback.Rollback)) }) }
	}})
	o, _, err := r.service(t).Create(t.Context(), request)
	require.NoError(t, err)
	r.requireSettled(t)
	orders, tombstones := r.rows(t)
	require.Equal(t, o.MsgID, orders[0].MsgID)
	require.Len(t, tombstones, 1)
	require.NotEqual(t, o.MsgID, tombstones[0].MsgID)
	require.Equal(t, "~"+tombstones[0].MsgID, tombstones[0].OrderNo)
}

// A check during a slow local transaction finds the row's key locked: it must wait and answer UNKNOWN.
func TestCheckDuringLocalTransaction(t *testing.T) {
	t.Parallel()
	var r *rig
	r = newRig(t, rigOptions{producer: func(c *txmsg.Config) {
		c.LocalTimeout = 2 * wait
		c.Hooks.BeforeLocalCommit = func() { r.expose(t, atLeast(2)) } // the first may be UNKNOWN because the half is young
	}})
	o, _, err := r.service(t).Create(t.Context(), request)
	require.NoError(t, err)
	r.requireSettled(t)
	orders, tombstones := r.rows(t)
	require.Equal(t, o.MsgID, orders[0].MsgID)
	require.Empty(t, tombstones)
}

// The broker may ask about a transaction that it was told to commit (rocketmq-client.md, section 4): the answer is
// COMMIT again, and the second delivery is the consumer's to recognise.
func TestCheckOfCommitted(t *testing.T) {
	t.Parallel()
	var kept atomic.Int32
	r := newRig(t, rigOptions{broker: func(c *broker.Config) {
		c.Hooks.KeepHalf = func(string) bool { return kept.Add(1) == 1 }
	}})
	o, _, err := r.service(t).Create(t.Context(), request)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return r.broker.OpenHalves() == 0 }, wait, tick)
	got := r.messages(t)
	require.Len(t, got, 2)
	require.Equal(t, o.MsgID, got[0].UniqKey)
	require.Equal(t, o.MsgID, got[1].UniqKey)
	_, tombstones := r.rows(t)
	require.Empty(t, tombstones)
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	for name, openFor := range map[string]time.Duration{"stays open": time.Hour, "closes again": 500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tried atomic.Int32
			r := newRig(t, rigOptions{producer: func(c *txmsg.Config) {
				c.HalfTimeout = 300 * time.Millisecond
				c.Breaker = txmsg.BreakerConfig{Failures: 2, OpenFor: openFor}
				c.Hooks.BeforeHalf = func() { tried.Add(1) }
			}})
			r.awaitReady(t)
			s := r.service(t)
			stopped, stop := context.WithTimeout(t.Context(), wait)
			defer stop()
			require.NoError(t, r.broker.Stop(stopped))
			for range 2 {
				_, _, err := s.Create(t.Context(), request)
				requireUnavailable(t, err)
			}
			require.EqualValues(t, 2, tried.Load())
			if openFor == time.Hour { // else it may be time for a probe
				_, _, err := s.Create(t.Context(), request)
				requireUnavailable(t, err)
				require.EqualValues(t, 2, tried.Load(), "an open breaker tries no half message")
				return
			}
			r.broker = brokertest.Restart(t, r.broker)
			create(t, s)
			orders, _ := r.rows(t)
			require.Len(t, orders, 1)
		})
	}
}
