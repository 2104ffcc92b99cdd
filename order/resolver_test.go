package order_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

// scripted is a publisher whose attempts a test makes up: it hands the local transaction the given attempts in turn
// for as long as they are voided, as a strategy does with new ones.
type scripted struct {
	db       *database.DB
	attempts []halfbox.Attempt
	between  func(halfbox.Event, halfbox.Attempt) // after the half message, before the local transaction
	inside   func()                               // before COMMIT

	errs []error
}

func (s *scripted) PublishInTx(ctx context.Context, ev halfbox.Event, local func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error) {
	for _, at := range s.attempts {
		if s.between != nil {
			s.between(ev, at)
		}
		err := s.db.InTx(ctx, func(tx *gorm.DB) error {
			err := local(tx, at)
			if err == nil && s.inside != nil {
				s.inside()
			}
			return err
		})
		s.errs = append(s.errs, err)
		if !errors.Is(err, halfbox.ErrVoided) {
			return halfbox.Receipt{Attempt: at}, err
		}
	}
	return halfbox.Receipt{}, s.errs[len(s.errs)-1]
}

func serve(t testing.TB, db *database.DB, p order.Publisher) *order.Service {
	t.Helper()
	s, err := order.NewService(order.Config{DB: db, Default: halfbox.DeliveryTxmsg, Publishers: map[halfbox.Delivery]order.Publisher{halfbox.DeliveryTxmsg: p}})
	require.NoError(t, err)
	return s
}

func attempts(t testing.TB, n int) []halfbox.Attempt {
	t.Helper()
	made := make([]halfbox.Attempt, n)
	for i := range made {
		at, err := halfbox.NewAttempt(halfbox.DeliveryTxmsg)
		require.NoError(t, err)
		made[i] = at
	}
	return made
}

func half(at halfbox.Attempt, orderNo string) checkback.Half {
	return checkback.Half{MsgID: at.MsgID, Type: order.EventCreated, BizNo: orderNo, BornAt: time.Now().Add(-time.Hour)}
}

// requireFinding asserts what both a new and an old half message of the attempt find.
func requireFinding(t testing.TB, r *order.CreatedResolver, want checkback.Finding, h checkback.Half) {
	t.Helper()
	got, err := r.Find(context.Background(), h)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestFind(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		r := order.NewCreatedResolver(e.open(t, database.Options{LockWait: time.Second}))
		ats := attempts(t, 3)
		s, _ := newService(t, db)
		o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100})
		require.NoError(t, err)
		own := checkback.Half{MsgID: o.MsgID, BizNo: o.OrderNo}

		requireFinding(t, r, checkback.Committed, own)
		requireFinding(t, r, checkback.Committed, checkback.Half{MsgID: o.MsgID}) // msg_id alone is enough
		requireFinding(t, r, checkback.Superseded, half(ats[0], o.OrderNo))
		requireFinding(t, r, checkback.Absent, half(ats[0], "01ARZ3NDEKTSV4RRFFQ69G5FAV"))
		requireFinding(t, r, checkback.Absent, half(ats[0], ""))

		require.NoError(t, r.Bury(t.Context(), half(ats[1], "01ARZ3NDEKTSV4RRFFQ69G5FAV")))
		requireFinding(t, r, checkback.Void, half(ats[1], "01ARZ3NDEKTSV4RRFFQ69G5FAV"))
		// The attempt's own tombstone comes before anything that its order number says.
		requireFinding(t, r, checkback.Void, half(ats[1], o.OrderNo))
		// A tombstone takes nothing from other attempts of the same order.
		requireFinding(t, r, checkback.Absent, half(ats[2], "01ARZ3NDEKTSV4RRFFQ69G5FAV"))

		// A cancelled order did commit.
		require.NoError(t, db.Write.Exec("UPDATE t_order SET status = 'CANCELLED', version = 2 WHERE order_no = ?", o.OrderNo).Error)
		requireFinding(t, r, checkback.Committed, own)
		requireFinding(t, r, checkback.Superseded, half(ats[0], o.OrderNo))
	})
}

// The order appears after the look by msg_id and before the look by order_no: its own, or another attempt's.
func TestFindBetweenTheTwoReads(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		for _, mine := range []bool{true, false} {
			ats := attempts(t, 2)
			var orderNo string
			var armed atomic.Bool
			p := &scripted{db: e.db(t), attempts: ats[:1]}
			commit := func() {
				o, _, err := serve(t, p.db, p).Create(context.Background(), order.CreateRequest{UserID: 7, AmountCents: 100})
				require.NoError(t, err)
				orderNo = o.OrderNo
			}
			hooked := e.open(t, database.Options{Hooks: database.Hooks{After: func(op database.Op, query string) error {
				if op == database.OpQuery && strings.Contains(query, "msg_id = ?") && armed.CompareAndSwap(true, false) {
					// The order number is known only now, so the row is renamed to what the half message says.
					commit()
					return p.db.Write.Exec("UPDATE t_order SET order_no = 'BETWEEN' WHERE order_no = ?", orderNo).Error
				}
				return nil
			}}})
			h, want := half(ats[0], "BETWEEN"), checkback.Committed
			if !mine {
				h, want = half(ats[1], "BETWEEN"), checkback.Superseded
			}
			armed.Store(true)
			requireFinding(t, order.NewCreatedResolver(hooked), want, h)
			require.False(t, armed.Load(), "the row did appear in between")
			require.NoError(t, p.db.Write.Exec("DELETE FROM t_order").Error)
		}
	})
}

func TestFindNeverGuessesOnAnError(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	s, _ := newService(t, e.db(t))
	o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100})
	require.NoError(t, err)
	for _, failing := range []string{"msg_id = ?", "order_no = ?"} {
		hooked := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
			if op == database.OpQuery && strings.Contains(query, failing) {
				return errWire
			}
			return nil
		}}})
		finding, err := order.NewCreatedResolver(hooked).Find(t.Context(), half(attempts(t, 1)[0], o.OrderNo))
		require.ErrorIs(t, err, errWire, failing)
		require.Equal(t, checkback.Absent, finding)
	}
}

func TestTombstoneIsNoOrder(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, _ := newService(t, db)
		ats := attempts(t, 2)
		r := order.NewCreatedResolver(db)
		for _, at := range ats { // the key of tombstones is NULL: they do not meet each other
			require.NoError(t, r.Bury(t.Context(), half(at, "X")))
		}
		require.Equal(t, 2, count(t, db, "status = 'VOID'"))
		for _, no := range []string{"~" + ats[0].MsgID, ats[0].MsgID, "X", "~"} {
			_, err := s.Get(t.Context(), no)
			require.ErrorIs(t, err, order.ErrNotFound, no)
		}
		// The tombstone's user is 0 and its key NULL: no key of any user finds it.
		_, replayed, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100, IdempotencyKey: "k"})
		require.NoError(t, err)
		require.False(t, replayed)
	})
}

func TestBuryTaken(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, _ := newService(t, db)
		r := order.NewCreatedResolver(e.open(t, database.Options{LockWait: time.Second}))
		o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100})
		require.NoError(t, err)
		require.ErrorIs(t, r.Bury(t.Context(), checkback.Half{MsgID: o.MsgID, BizNo: o.OrderNo}), checkback.ErrTaken)
		at := attempts(t, 1)[0]
		require.NoError(t, r.Bury(t.Context(), half(at, "X")))
		require.ErrorIs(t, r.Bury(t.Context(), half(at, "X")), checkback.ErrTaken)
		got, err := s.Get(t.Context(), o.OrderNo)
		require.NoError(t, err)
		require.Equal(t, o, got, "the order is untouched")
	})
}

// R30: the check comes while the local transaction is open. It must not take that for "taken", nor wait for long.
func TestBuryWhileTheLocalTransactionIsOpen(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := order.NewCreatedResolver(e.open(t, database.Options{LockWait: time.Second}))
		p := &scripted{db: e.db(t), attempts: attempts(t, 1)}
		h := half(p.attempts[0], "X")
		p.inside = func() {
			began := time.Now()
			err := r.Bury(context.Background(), h)
			took := time.Since(began)
			require.Error(t, err)
			require.NotErrorIs(t, err, checkback.ErrTaken)
			require.True(t, database.IsLockConflict(err), "%v", err)
			require.Less(t, took, wait/2, "the lock wait is short")
			finding, err := r.Find(context.Background(), h)
			require.NoError(t, err)
			require.Equal(t, checkback.Absent, finding, "what is not committed is not seen")
		}
		o, _, err := serve(t, p.db, p).Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100})
		require.NoError(t, err)
		require.Equal(t, p.attempts[0].MsgID, o.MsgID)
		requireFinding(t, r, checkback.Committed, half(p.attempts[0], o.OrderNo))
	})
}

// R58: the check answered ROLLBACK before the local transaction began. The attempt can never commit, the order can.
func TestLateCommitAfterBury(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		r := order.NewCreatedResolver(e.open(t, database.Options{LockWait: time.Second}))
		p := &scripted{db: db, attempts: attempts(t, 2)}
		var once sync.Once
		p.between = func(ev halfbox.Event, at halfbox.Attempt) {
			once.Do(func() { require.NoError(t, r.Bury(context.Background(), half(at, ev.Subject))) })
		}
		o, _, err := serve(t, db, p).Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100, IdempotencyKey: "k"})
		require.NoError(t, err)
		require.Len(t, p.errs, 2)
		require.ErrorIs(t, p.errs[0], halfbox.ErrVoided)
		require.ErrorIs(t, p.errs[0], halfbox.ErrRolledBack)
		require.NoError(t, p.errs[1])
		require.Equal(t, p.attempts[1].MsgID, o.MsgID)
		requireFinding(t, r, checkback.Void, half(p.attempts[0], o.OrderNo))
		requireFinding(t, r, checkback.Committed, half(p.attempts[1], o.OrderNo))
		require.Equal(t, 1, count(t, db, "status = 'CREATED'"))
		require.Equal(t, 1, count(t, db, "status = 'VOID'"))
	})
}

func TestTwoInstancesBuryAtOnce(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		instances := []*order.CreatedResolver{
			order.NewCreatedResolver(e.open(t, database.Options{LockWait: wait})),
			order.NewCreatedResolver(e.open(t, database.Options{LockWait: wait})),
		}
		db := e.db(t)
		for _, at := range attempts(t, 20) {
			errs := make([]error, len(instances))
			var wg sync.WaitGroup
			for i, r := range instances {
				wg.Go(func() { errs[i] = r.Bury(t.Context(), half(at, "X")) })
			}
			wg.Wait()
			if errs[0] != nil {
				errs[0], errs[1] = errs[1], errs[0]
			}
			require.NoError(t, errs[0], "one of them did it")
			require.ErrorIs(t, errs[1], checkback.ErrTaken)
			require.Equal(t, 1, count(t, db, "msg_id = ?", at.MsgID))
		}
	})
}
