package txmsg_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/conformance"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/txmsg"
)

// requireFellBack checks that an order went to the outbox, its event record in the order's transaction, and that
// nothing of it reaches the broker by the half message.
func (r *rig) requireFellBack(t *testing.T, o order.Order) {
	t.Helper()
	require.Equal(t, halfbox.DeliveryOutbox, o.Delivery)
	records, err := outbox.Get(t.Context(), r.db, o.MsgID)
	require.NoError(t, err)
	require.Equal(t, outbox.StatusWait, records[0].Status)
	require.Equal(t, o.OrderNo, records[0].BizNo)
	require.Eventually(t, func() bool { return r.broker.OpenHalves() == 0 }, wait, tick, "a half message stays open")
	require.Empty(t, r.messages(t), "no relay runs: whatever arrived came from a half message")
	orders, _ := r.rows(t)
	require.Len(t, orders, 1)
}

// Every way in which a half message fails to be stored, or only seems to, ends in one order and one event record.
func TestFallback(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		request, response broker.Action
		stored            bool // the half is stored after all; its check must roll it back
	}{
		"refused":                    {request: broker.Action{Code: codeSystemBusy, Remark: "busy"}},
		"request lost":               {request: broker.Action{Drop: true}},
		"connection cut before":      {request: broker.Action{Disconnect: true}},
		"stored, answer lost":        {response: broker.Action{Drop: true}, stored: true},
		"stored, answer late":        {response: broker.Action{Delay: 3 * time.Second}, stored: true},
		"stored, connection cut":     {response: broker.Action{Disconnect: true}, stored: true},
		"stored, flush disk timeout": {response: broker.Action{Code: 10}},
		"stored, slave not there":    {response: broker.Action{Code: 11}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			var stored atomic.Int32
			armed.Store(true)
			r := newRig(t, rigOptions{
				fallback: true,
				broker: func(c *broker.Config) {
					c.Hooks.OnRequest = onHalf(&armed, tc.request)
					c.Hooks.OnResponse = storing(&stored, &armed, tc.response)
				},
				producer: func(c *txmsg.Config) { c.HalfTimeout = time.Second },
			})
			r.awaitReady(t)
			if tc.response.Disconnect {
				r.startPeer(t)
			}
			o, _, err := r.service(t).Create(t.Context(), request)
			require.NoError(t, err)
			if tc.stored {
				require.Eventually(t, func() bool { return stored.Load() == 1 }, wait, tick, "the case is not the one it says")
			}
			r.requireFellBack(t, o)
		})
	}
}

// While the breaker is open an order costs its outbox write and nothing else: two INSERTs, no half message.
func TestFallbackWithOpenBreaker(t *testing.T) {
	t.Parallel()
	var halves atomic.Int32
	var mu sync.Mutex
	var statements []string
	r := newRig(t, rigOptions{
		fallback: true,
		hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			mu.Lock()
			defer mu.Unlock()
			statements = append(statements, fmt.Sprintf("%.11s", query)) // gorm asks SQLite for the id, so an INSERT is a query
			return nil
		}},
		producer: func(c *txmsg.Config) {
			c.HalfTimeout = 200 * time.Millisecond
			c.Breaker = txmsg.BreakerConfig{Failures: 1, OpenFor: time.Hour}
			c.Hooks.BeforeHalf = func() { halves.Add(1) }
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, r.broker.Stop(ctx))
	s := r.service(t)
	_, _, err := s.Create(t.Context(), request)
	require.NoError(t, err)
	require.EqualValues(t, 1, halves.Load())

	mu.Lock()
	statements = nil
	mu.Unlock()
	o, _, err := s.Create(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, halfbox.DeliveryOutbox, o.Delivery)
	require.EqualValues(t, 1, halves.Load(), "an open breaker tries no half message")
	require.Equal(t, []string{"BEGIN", "INSERT INTO", "INSERT INTO", "COMMIT"}, statements)
}

// forbidden is a fallback that must not be taken.
type forbidden struct{ t *testing.T }

func (f forbidden) PublishInTx(context.Context, halfbox.Event, func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error) {
	f.t.Error("a fallback was taken after the local transaction had begun")
	return halfbox.Receipt{}, halfbox.RolledBack(halfbox.ErrUnavailable)
}

// Once the local transaction runs there is no fallback, whatever becomes of it: the whole contract holds with a
// fallback that must not be taken.
func TestConformanceWithFallback(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, hooks database.Hooks) conformance.Strategy {
		r := newRig(t, rigOptions{hooks: hooks, producer: func(c *txmsg.Config) { c.Fallback = forbidden{t} }})
		return r.strategy()
	})
}

// Even a local transaction that says itself that something is unavailable has run, once.
func TestNoFallbackForTheLocalTransactionsOwnError(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]error{"unavailable": halfbox.ErrUnavailable, "deadline": context.DeadlineExceeded} {
		r := newRig(t, rigOptions{producer: func(c *txmsg.Config) { c.Fallback = forbidden{t} }})
		ran := 0
		_, err := r.producer.PublishInTx(t.Context(), orderEvent(t), func(*gorm.DB, halfbox.Attempt) error { ran++; return cause })
		require.ErrorIs(t, err, halfbox.ErrRolledBack, name)
		require.ErrorIs(t, err, cause)
		require.Equal(t, 1, ran)
	}
}

// Nor is it taken when the local transaction outlasts the deadline of the half message.
func TestNoFallbackWhileTheLocalTransactionRuns(t *testing.T) {
	t.Parallel()
	var r2 *rig
	r2 = newRig(t, rigOptions{producer: func(c *txmsg.Config) {
		c.Fallback = forbidden{t}
		c.HalfTimeout = 10 * time.Second // enough for the half message on any machine
		c.LocalTimeout = wait
		c.Hooks.BeforeLocalCommit = func() {
			began := time.Now()
			require.Eventually(t, func() bool { return time.Since(began) > r2.cfg.HalfTimeout+time.Second }, wait, tick)
		}
	}})
	r2.awaitReady(t)
	o, _, err := r2.service(t).Create(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, halfbox.DeliveryTxmsg, o.Delivery)
	r2.requireSettled(t)
}
