package txmsg_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/txmsg"
)

// A cancellation whose half message is not stored, or only seems so, is made by the outbox; the half message that was
// stored after all is rolled back by its check, which finds nothing under its id in t_tx_log.
func TestCancellationFallsBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		request, response broker.Action
		stored            bool
	}{
		"refused":             {request: broker.Action{Code: codeSystemBusy, Remark: "busy"}},
		"request lost":        {request: broker.Action{Drop: true}},
		"stored, answer lost": {response: broker.Action{Drop: true}, stored: true},
		"stored, answer late": {response: broker.Action{Delay: 3 * time.Second}, stored: true},
	} {
		for engine, open := range map[string]func(testing.TB) opener{"sqlite": sqliteAt, "mysql": mysqlAt} {
			t.Run(name+", "+engine, func(t *testing.T) {
				t.Parallel()
				cancellationFallsBack(t, open(t), tc.request, tc.response, tc.stored)
			})
		}
	}
}

func cancellationFallsBack(t *testing.T, open opener, request, response broker.Action, stored bool) {
	var armed atomic.Bool
	var halves atomic.Int32
	w := embedded(t, open, func(c *broker.Config) {
		c.Hooks.OnRequest = onHalf(&armed, request)
		c.Hooks.OnResponse = storing(&halves, &armed, response)
	})
	checks := open(t, database.Options{LockWait: time.Second})
	require.NoError(t, checks.Migrate(t.Context(), txlog.Migrations()))
	checker, err := checkback.New(checkback.Config{Grace: w.grace, Resolvers: map[string]checkback.Resolver{
		order.EventCreated: order.NewCreatedResolver(checks), order.EventCancelled: txlog.NewResolver(checks),
	}})
	require.NoError(t, err)
	answers := &recorder{inner: checker}
	n := w.node(t, nodeOptions{fallback: true, producer: func(c *txmsg.Config) { c.HalfTimeout, c.Checker = time.Second, answers }})
	n.awaitReady(t)
	// The order goes by the outbox, so that every half message here is the cancellation's.
	s, err := order.NewService(order.Config{DB: n.db, Default: halfbox.DeliveryTxmsg, Publishers: map[halfbox.Delivery]order.Publisher{
		halfbox.DeliveryTxmsg: n.producer, halfbox.DeliveryOutbox: n.cfg.Fallback,
	}})
	require.NoError(t, err)
	o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 9990, Delivery: halfbox.DeliveryOutbox})
	require.NoError(t, err)

	armed.Store(true)
	got, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
	require.NoError(t, err)
	require.Equal(t, order.StatusCancelled, got.Status)
	if stored {
		require.Eventually(t, func() bool { return halves.Load() == 1 }, wait, tick, "the case is not the one it says")
	}
	require.Eventually(t, func() bool { return w.broker.OpenHalves() == 0 }, wait, tick, "a half message stays open")

	type row struct{ TxID, State, Delivery string }
	transactions := func(state string) (found []row) {
		require.NoError(t, checks.Read.Raw("SELECT tx_id, state, delivery FROM t_tx_log WHERE biz_no = ? AND state = ?", o.OrderNo, state).Scan(&found).Error)
		return found
	}
	committed := transactions("COMMITTED")
	require.Len(t, committed, 1)
	require.Equal(t, "outbox", committed[0].Delivery)
	record, err := outbox.Get(t.Context(), n.db, committed[0].TxID)
	require.NoError(t, err)
	require.Equal(t, []any{order.EventCancelled, o.OrderNo, outbox.StatusWait}, []any{record[0].EventType, record[0].BizNo, record[0].Status})
	voided := transactions("VOID")
	for _, id := range answers.asked() {
		require.Equal(t, []row{{id, "VOID", "txmsg"}}, voided)
		bodies, err := w.delivered(id)
		require.NoError(t, err)
		require.Empty(t, bodies)
	}
	if response.Drop {
		require.Len(t, voided, 1, "its check makes the tombstone")
	}
	if !stored {
		require.Empty(t, voided)
	}

	again, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
	require.NoError(t, err)
	require.Equal(t, got, again)
	require.Equal(t, committed, transactions("COMMITTED"))
}
