package order_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/order"
)

// transactions are the rows of t_tx_log of an order.
func transactions(t testing.TB, db *database.DB, orderNo string) (found []txRow) {
	t.Helper()
	require.NoError(t, db.Read.Raw("SELECT tx_id, state, delivery, biz_type FROM t_tx_log WHERE biz_no = ? ORDER BY tx_id", orderNo).Scan(&found).Error)
	return found
}

type txRow struct{ TxID, State, Delivery, BizType string }

func newOrder(t testing.TB, s *order.Service) order.Order {
	t.Helper()
	o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 9990})
	require.NoError(t, err)
	return o
}

func TestCancel(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, d := newService(t, db)
		o := newOrder(t, s)
		got, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
		require.NoError(t, err)
		want := o
		want.Status, want.Version, want.UpdatedAt = order.StatusCancelled, 2, got.UpdatedAt
		require.Equal(t, want, got, "the order is as it was, but cancelled")
		require.False(t, got.UpdatedAt.Before(o.UpdatedAt))
		require.Equal(t, order.PointsPending, got.PointsState, "the points are not taken back by this")
		read, err := s.Get(t.Context(), o.OrderNo)
		require.NoError(t, err)
		require.Equal(t, got, read)

		require.Len(t, d.events, 2)
		ev := d.events[1]
		require.Equal(t, order.EventCancelled, ev.Type)
		require.Equal(t, o.OrderNo, ev.Subject)
		require.EqualValues(t, 2, ev.AggregateVersion)
		require.JSONEq(t, string(d.events[0].Data), string(ev.Data), "the complete facts")
		rows := transactions(t, db, o.OrderNo)
		require.Equal(t, []txRow{{rows[0].TxID, "COMMITTED", "txmsg", order.EventCancelled}}, rows)
		require.NotEqual(t, o.MsgID, rows[0].TxID)

		calls := d.calls
		again, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo, Delivery: halfbox.DeliveryOutbox})
		require.NoError(t, err)
		require.Equal(t, got, again, "the same answer")
		require.Equal(t, calls, d.calls, "a repetition costs no half message")
		require.Len(t, transactions(t, db, o.OrderNo), 1)
	})
}

func TestCancelChoosesTheDelivery(t *testing.T) {
	t.Parallel()
	db := newSQLite(t).db(t)
	s, _ := newService(t, db)
	o := newOrder(t, s)
	got, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo, Delivery: halfbox.DeliveryOutbox})
	require.NoError(t, err)
	require.Equal(t, halfbox.DeliveryTxmsg, got.Delivery, "that of the order")
	require.Equal(t, "outbox", transactions(t, db, o.OrderNo)[0].Delivery, "recorded under every delivery")
	_, err = s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo, Delivery: halfbox.DeliveryCDC})
	var invalid *order.InvalidError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "delivery", invalid.Field)
}

func TestCancelOfAnUnknownOrder(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, d := newService(t, db)
		at := attempts(t, 1)[0]
		require.NoError(t, order.NewCreatedResolver(db).Bury(t.Context(), half(at, "X")))
		for _, no := range []string{"X", "", "~" + at.MsgID} {
			_, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: no})
			require.ErrorIs(t, err, order.ErrNotFound, no)
		}
		require.Zero(t, d.calls)
	})
}

// Many cancels at once, by both deliveries: one event, and everybody has the same answer.
func TestCancelAtOnce(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		const callers = 32
		// All wait for one row, and each commit syncs; none waits for a connection besides, as the look may not for long.
		db := e.open(t, database.Options{LockWait: wait, MaxOpen: callers})
		txmsg, outbox := &direct{db: db, delivery: halfbox.DeliveryTxmsg}, &direct{db: db, delivery: halfbox.DeliveryOutbox}
		s, err := order.NewService(order.Config{DB: db, Default: halfbox.DeliveryTxmsg, Publishers: map[halfbox.Delivery]order.Publisher{
			halfbox.DeliveryTxmsg: txmsg, halfbox.DeliveryOutbox: outbox,
		}})
		require.NoError(t, err)
		o := newOrder(t, s)
		answers := make([]order.Order, callers)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range callers {
			wg.Go(func() {
				<-start
				var err error
				if answers[i], err = s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo, Delivery: s.Deliveries()[i%2]}); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		for _, a := range answers {
			require.Equal(t, answers[0], a)
		}
		require.Equal(t, order.StatusCancelled, answers[0].Status)
		require.EqualValues(t, 2, answers[0].Version)
		require.Equal(t, 2, len(txmsg.events)+len(outbox.events), "one created, one cancelled")
		require.Len(t, transactions(t, db, o.OrderNo), 1)
	})
}

// beforeUpdate calls do before an UPDATE of t_order.
func beforeUpdate(do func() error) database.Hooks {
	return database.Hooks{Before: func(_ database.Op, query string) error {
		if strings.HasPrefix(query, "UPDATE t_order") {
			return do()
		}
		return nil
	}}
}

// The version is part of the condition: an order that was changed since it was read is read again.
func TestCancelReadsAgain(t *testing.T) {
	t.Parallel()
	e := newMySQL(t) // on SQLite nobody writes while a transaction is open
	other := e.db(t)
	var orderNo string
	var armed atomic.Bool
	db := e.open(t, database.Options{Hooks: beforeUpdate(func() error {
		if !armed.CompareAndSwap(true, false) {
			return nil
		}
		return other.Write.Exec("UPDATE t_order SET version = version + 1 WHERE order_no = ?", orderNo).Error
	})})
	s, d := newService(t, db)
	o := newOrder(t, s)
	orderNo = o.OrderNo
	armed.Store(true)
	got, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
	require.NoError(t, err)
	require.False(t, armed.Load())
	require.EqualValues(t, 3, got.Version)
	require.Len(t, d.events, 2)
	require.EqualValues(t, 3, d.events[1].AggregateVersion, "what is said is what was committed")
	require.Len(t, transactions(t, db, o.OrderNo), 1)
}

// An order that changes at every look is given up, with nothing done.
func TestCancelGivesUp(t *testing.T) {
	t.Parallel()
	e := newMySQL(t)
	other := e.db(t)
	var orderNo string
	tries := 0
	db := e.open(t, database.Options{Hooks: beforeUpdate(func() error {
		tries++
		return other.Write.Exec("UPDATE t_order SET version = version + 1 WHERE order_no = ?", orderNo).Error
	})})
	s, d := newService(t, db)
	orderNo = newOrder(t, s).OrderNo
	_, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: orderNo})
	require.ErrorIs(t, err, order.ErrBusy)
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.Equal(t, 5, tries)
	require.Len(t, d.events, 1)
	require.Empty(t, transactions(t, db, orderNo))
}

func TestCancelCommitAnswerLost(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		for _, committed := range []bool{true, false} {
			hook, arm := once()
			hooks := database.Hooks{Before: hook}
			if committed {
				hooks = database.Hooks{After: hook}
			}
			db := e.open(t, database.Options{Hooks: hooks})
			s, d := newService(t, db)
			o := newOrder(t, s)
			arm()
			_, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
			require.ErrorIs(t, err, halfbox.ErrUnknown)
			require.NotErrorIs(t, err, halfbox.ErrRolledBack)
			var unknown *order.UnknownError
			require.ErrorAs(t, err, &unknown)
			require.Equal(t, o.OrderNo, unknown.OrderNo)
			got, err := s.Get(t.Context(), o.OrderNo)
			require.NoError(t, err)
			require.Equal(t, committed, got.Status == order.StatusCancelled)

			again, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
			require.NoError(t, err, "cancelling again resolves it")
			require.Equal(t, order.StatusCancelled, again.Status)
			require.EqualValues(t, 2, again.Version)
			require.Len(t, transactions(t, db, o.OrderNo), 1)
			published := 1 // "direct" publishes only what it knows to be committed
			if !committed {
				published = 2
			}
			require.Len(t, d.events, published)
		}
	})
}

// A check that was faster than the local transaction has voided its attempt: the next one commits.
func TestCancelMeetsItsTombstone(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		first, _ := newService(t, db)
		o := newOrder(t, first)
		ats := attempts(t, 2)
		r := txlog.NewResolver(db)
		p := &scripted{db: db, attempts: ats, between: func(ev halfbox.Event, at halfbox.Attempt) {
			if at == ats[0] {
				require.NoError(t, r.Bury(context.Background(), checkback.Half{MsgID: at.MsgID, Type: ev.Type, BizNo: ev.Subject, BornAt: time.Now()}))
			}
		}}
		got, err := serve(t, db, p).Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
		require.NoError(t, err)
		require.Equal(t, order.StatusCancelled, got.Status)
		require.Len(t, p.errs, 2)
		require.ErrorIs(t, p.errs[0], halfbox.ErrVoided)
		require.Equal(t, []txRow{
			{ats[0].MsgID, "VOID", "txmsg", order.EventCancelled}, {ats[1].MsgID, "COMMITTED", "txmsg", order.EventCancelled},
		}, transactions(t, db, o.OrderNo))
	})
}

// A key's replay shows the order as it is now.
func TestReplayOfACancelledOrder(t *testing.T) {
	t.Parallel()
	s, _ := newService(t, newSQLite(t).db(t))
	req := order.CreateRequest{UserID: 7, AmountCents: 100, IdempotencyKey: "k"}
	o, _, err := s.Create(t.Context(), req)
	require.NoError(t, err)
	cancelled, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
	require.NoError(t, err)
	again, replayed, err := s.Create(t.Context(), req)
	require.NoError(t, err)
	require.True(t, replayed)
	require.Equal(t, cancelled, again)
}

// A database that says nothing must not hold a cancel for as long as its request may take.
func TestCancelOfASilentDatabase(t *testing.T) {
	t.Parallel()
	dsn := enginetest.MySQL(t)
	wire, through := enginetest.MySQLProxy(t, dsn)
	e := migrated(t, func(o database.Options) (*database.DB, error) { return database.OpenMySQL(through, o) })
	s, d := newService(t, e.db(t))
	o := newOrder(t, s)
	wire.Blackhole(enginetest.ToClient)
	_, err := s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
	require.ErrorIs(t, err, context.DeadlineExceeded, "the driver's own deadline of 15 s says otherwise")
	require.Equal(t, 1, d.calls, "no half message for what cannot be read")
}
