package checkback_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

// A cancellation leaves no row of its own: the rescue decides by t_tx_log, whether it committed or not.
func TestRescueOfACancellation(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueCancellation)
}

func rescueCancellation(t *testing.T, w world) {
	var lose atomic.Bool
	db := w.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, _ string) error {
		if op == database.OpCommit && lose.Load() {
			return driver.ErrBadConn // what is open when the connection goes is rolled back
		}
		return nil
	}}})
	look := w.open(t, database.Options{})
	require.NoError(t, look.Migrate(t.Context(), txlog.Migrations()))
	cancel := func(orderNo string) (halfbox.Attempt, error) {
		p := halfFirst{attempts{db: db, at: newAttempt(t)}, t, w}
		s, err := order.NewService(order.Config{DB: db, Default: halfbox.DeliveryTxmsg, Publishers: map[halfbox.Delivery]order.Publisher{halfbox.DeliveryTxmsg: p}})
		require.NoError(t, err)
		_, err = s.Cancel(context.Background(), order.CancelRequest{OrderNo: orderNo})
		return p.at, err
	}
	kept, err := create(t, attempts{db: db, at: newAttempt(t)})
	require.NoError(t, err)
	gone, err := create(t, attempts{db: db, at: newAttempt(t)})
	require.NoError(t, err)

	lose.Store(true)
	rolledBack, err := cancel(kept.OrderNo)
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	lose.Store(false)
	committed, err := cancel(gone.OrderNo)
	require.NoError(t, err)
	w.discarded(t)
	r := w.rescue(t, database.Options{}, func(c *checkback.RescueConfig) {
		checks := w.open(t, database.Options{LockWait: time.Second})
		c.Checker, err = checkback.New(checkback.Config{Resolvers: map[string]checkback.Resolver{
			order.EventCreated: order.NewCreatedResolver(checks), order.EventCancelled: txlog.NewResolver(checks),
		}})
		require.NoError(t, err)
	})
	eventually(t, func() bool { return r.outcome(t, "republished") == 1 && r.outcome(t, "rolled_back") == 1 }, "not decided")

	got := records(t, look)
	require.Len(t, got, 1)
	id, ev, err := halfbox.Decode(got[committed.MsgID])
	require.NoError(t, err)
	require.Equal(t, []any{committed.MsgID, order.EventCancelled, gone.OrderNo, int64(2)}, []any{id, ev.Type, ev.Subject, ev.AggregateVersion})
	require.JSONEq(t, fmt.Sprintf(`{"order_no":%q,"user_id":7,"amount_cents":100}`, gone.OrderNo), string(ev.Data))
	require.Equal(t, 1, rows(t, look, "order_no = ? AND status = 'CANCELLED'", gone.OrderNo))
	require.Equal(t, 1, rows(t, look, "order_no = ? AND status = 'CREATED'", kept.OrderNo))
	var states []struct{ TxID, State string }
	require.NoError(t, look.Read.Raw("SELECT tx_id, state FROM t_tx_log ORDER BY tx_id").Scan(&states).Error)
	require.Equal(t, []struct{ TxID, State string }{{rolledBack.MsgID, "VOID"}, {committed.MsgID, "COMMITTED"}}, states)

	again, err := cancel(kept.OrderNo) // its tombstone voids one attempt, not the cancellation
	require.NoError(t, err)
	require.NotEqual(t, rolledBack, again)
	eventually(t, func() bool { return r.outcome(t, "republished") == 2 }, "the second try is not rescued")
	require.Contains(t, records(t, look), again.MsgID)
}
