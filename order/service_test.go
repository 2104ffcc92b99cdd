package order_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

func TestCreateThenGet(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		s, d := newService(t, e.db(t))
		o, replayed, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 9990})
		require.NoError(t, err)
		require.False(t, replayed)
		require.Len(t, o.OrderNo, 26)
		require.Equal(t, uuid.Version(7), uuid.MustParse(o.MsgID).Version())
		require.WithinDuration(t, time.Now(), o.CreatedAt, wait)
		require.Equal(t, order.Order{
			OrderNo: o.OrderNo, UserID: 7, AmountCents: 9990, Status: order.StatusCreated, Version: 1, MsgID: o.MsgID,
			Delivery: halfbox.DeliveryTxmsg, PointsState: order.PointsPending, CreatedAt: o.CreatedAt, UpdatedAt: o.CreatedAt,
		}, o)
		got, err := s.Get(t.Context(), o.OrderNo)
		require.NoError(t, err)
		require.Equal(t, o, got, "the answer to Create is what Get says later")

		require.Len(t, d.events, 1)
		ev := d.events[0]
		require.Equal(t, []string{order.EventCreated, order.EventSource, order.EventSchema, o.OrderNo, o.OrderNo},
			[]string{ev.Type, ev.Source, ev.DataSchema, ev.Subject, ev.PartitionKey})
		require.EqualValues(t, 1, ev.AggregateVersion)
		require.Equal(t, o.CreatedAt, ev.Time)
		var facts map[string]any
		require.NoError(t, json.Unmarshal(ev.Data, &facts))
		require.Equal(t, map[string]any{"order_no": o.OrderNo, "user_id": 7.0, "amount_cents": 9990.0}, facts)
	})
}

func TestGetUnknown(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		s, _ := newService(t, e.db(t))
		for _, no := range []string{"", "X", strings.Repeat("A", 26), "' OR 1=1 --"} {
			_, err := s.Get(t.Context(), no)
			require.ErrorIs(t, err, order.ErrNotFound)
		}
	})
}

func TestCreateWithoutKeyMakesANewOrderEachTime(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, _ := newService(t, db)
		req := order.CreateRequest{UserID: 7, AmountCents: 100}
		first, _, err := s.Create(t.Context(), req)
		require.NoError(t, err)
		second, replayed, err := s.Create(t.Context(), req)
		require.NoError(t, err)
		require.False(t, replayed)
		require.NotEqual(t, first.OrderNo, second.OrderNo)
		require.Equal(t, 2, count(t, db, "1 = 1"))
	})
}

func TestCreateChoosesTheDelivery(t *testing.T) {
	t.Parallel()
	s, _ := newService(t, newSQLite(t).db(t))
	require.Equal(t, []halfbox.Delivery{halfbox.DeliveryOutbox, halfbox.DeliveryTxmsg}, s.Deliveries())
	o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100, Delivery: halfbox.DeliveryOutbox})
	require.NoError(t, err)
	require.Equal(t, halfbox.DeliveryOutbox, o.Delivery)
}

func TestReplay(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, d := newService(t, db)
		req := order.CreateRequest{UserID: 7, AmountCents: 9990, IdempotencyKey: "key-1"}
		first, _, err := s.Create(t.Context(), req)
		require.NoError(t, err)
		again, replayed, err := s.Create(t.Context(), req)
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, first, again)
		require.Equal(t, 1, d.calls, "a plain repetition costs no half message")

		otherUser := req
		otherUser.UserID = 8
		other, replayed, err := s.Create(t.Context(), otherUser)
		require.NoError(t, err)
		require.False(t, replayed, "a key belongs to its user")
		require.NotEqual(t, first.OrderNo, other.OrderNo)

		upper := req
		upper.IdempotencyKey = "KEY-1"
		_, replayed, err = s.Create(t.Context(), upper)
		require.NoError(t, err)
		require.False(t, replayed, "keys are compared byte by byte")
	})
}

func TestKeyReused(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, _ := newService(t, db)
		req := order.CreateRequest{UserID: 7, AmountCents: 9990, IdempotencyKey: "key-1"}
		_, _, err := s.Create(t.Context(), req)
		require.NoError(t, err)
		amount, delivery := req, req
		amount.AmountCents++
		delivery.Delivery = halfbox.DeliveryOutbox
		for _, r := range []order.CreateRequest{amount, delivery} {
			_, replayed, err := s.Create(t.Context(), r)
			require.ErrorIs(t, err, order.ErrKeyReused)
			require.False(t, replayed)
		}
		require.Equal(t, 1, count(t, db, "1 = 1"))
	})
}

// The unique key decides, not the look before: all of them look before anybody has written.
func TestSameKeyAtOnce(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		const callers = 32
		db := e.open(t, database.Options{LockWait: wait, MaxOpen: callers}) // see TestCancelAtOnce
		s, d := newService(t, db)
		results := make(chan order.Order, callers)
		var fresh sync.Map
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range callers {
			wg.Go(func() {
				<-start
				o, replayed, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 500, IdempotencyKey: "same"})
				if err != nil {
					t.Error(err)
					return
				}
				if !replayed {
					fresh.Store(i, true)
				}
				results <- o
			})
		}
		close(start)
		wg.Wait()
		close(results)
		first := <-results
		for o := range results {
			require.Equal(t, first, o, "everybody gets the same answer")
		}
		n := 0
		fresh.Range(func(any, any) bool { n++; return true })
		require.Equal(t, 1, n, "one made it, the others were replays")
		require.Equal(t, 1, count(t, db, "1 = 1"))
		require.Len(t, d.events, 1)
	})
}

// Two requests with one key and different content: one order, the other is told.
func TestSameKeyOtherContentAtOnce(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.db(t)
		s, _ := newService(t, db)
		for round := range 10 {
			errs := make([]error, 2)
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() {
					_, _, errs[i] = s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: int64(100 + i), IdempotencyKey: fmt.Sprint(round)})
				})
			}
			wg.Wait()
			if errs[0] == nil {
				errs[0], errs[1] = errs[1], errs[0]
			}
			require.ErrorIs(t, errs[0], order.ErrKeyReused)
			require.NoError(t, errs[1])
		}
		require.Equal(t, 10, count(t, db, "1 = 1"))
	})
}

func TestCommitAnswerLost(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		for _, committed := range []bool{true, false} {
			hook, arm := once()
			hooks := database.Hooks{Before: hook}
			if committed {
				hooks = database.Hooks{After: hook}
			}
			db := e.open(t, database.Options{Hooks: hooks})
			s, _ := newService(t, db)
			req := order.CreateRequest{UserID: 7, AmountCents: 500, IdempotencyKey: fmt.Sprintf("lost-%v", committed)}
			arm()
			_, replayed, err := s.Create(t.Context(), req)
			require.False(t, replayed)
			require.ErrorIs(t, err, halfbox.ErrUnknown)
			require.NotErrorIs(t, err, halfbox.ErrRolledBack)
			var unknown *order.UnknownError
			require.ErrorAs(t, err, &unknown)
			require.Len(t, unknown.OrderNo, 26)

			got, err := s.Get(t.Context(), unknown.OrderNo)
			if !committed {
				require.ErrorIs(t, err, order.ErrNotFound)
			} else {
				require.NoError(t, err)
				require.Equal(t, unknown.OrderNo, got.OrderNo)
			}
			again, replayed, err := s.Create(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, committed, replayed)
			require.Equal(t, committed, again.OrderNo == unknown.OrderNo)
			require.Equal(t, 1, count(t, db, "idempotency_key = ?", req.IdempotencyKey))
		}
	})
}

func TestCreateRolledBack(t *testing.T) {
	t.Parallel()
	down := errors.New("disk on fire")
	e := newSQLite(t)
	db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
		if strings.HasPrefix(query, "INSERT") {
			return down
		}
		return nil
	}}})
	s, _ := newService(t, db)
	_, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 500, IdempotencyKey: "k"})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, down)
	require.Zero(t, count(t, e.db(t), "1 = 1"))
}

func TestValidation(t *testing.T) {
	t.Parallel()
	s, d := newService(t, newSQLite(t).db(t))
	ok := order.CreateRequest{UserID: 1, AmountCents: 1}
	with := func(change func(*order.CreateRequest)) order.CreateRequest { r := ok; change(&r); return r }
	bad := map[string]struct {
		field string
		req   order.CreateRequest
	}{
		"no user":          {"user_id", with(func(r *order.CreateRequest) { r.UserID = 0 })},
		"negative user":    {"user_id", with(func(r *order.CreateRequest) { r.UserID = -1 })},
		"nothing to pay":   {"amount_cents", with(func(r *order.CreateRequest) { r.AmountCents = 0 })},
		"negative amount":  {"amount_cents", with(func(r *order.CreateRequest) { r.AmountCents = -1 })},
		"amount too large": {"amount_cents", with(func(r *order.CreateRequest) { r.AmountCents = order.MaxAmountCents + 1 })},
		"key too long":     {"Idempotency-Key", with(func(r *order.CreateRequest) { r.IdempotencyKey = strings.Repeat("k", 256) })},
		"key with a space": {"Idempotency-Key", with(func(r *order.CreateRequest) { r.IdempotencyKey = "a b" })},
		"key with a break": {"Idempotency-Key", with(func(r *order.CreateRequest) { r.IdempotencyKey = "a\n" })},
		"key with DEL":     {"Idempotency-Key", with(func(r *order.CreateRequest) { r.IdempotencyKey = "a\x7f" })},
		"key not ASCII":    {"Idempotency-Key", with(func(r *order.CreateRequest) { r.IdempotencyKey = "ключ" })},
		"delivery unknown": {"delivery", with(func(r *order.CreateRequest) { r.Delivery = "pigeon" })},
		"delivery not set": {"delivery", with(func(r *order.CreateRequest) { r.Delivery = halfbox.DeliveryCDC })},
	}
	for name, tt := range bad {
		_, _, err := s.Create(t.Context(), tt.req)
		var invalid *order.InvalidError
		require.ErrorAs(t, err, &invalid, name)
		require.Equal(t, tt.field, invalid.Field, name)
		require.Contains(t, err.Error(), tt.field)
	}
	require.Zero(t, d.calls, "a bad request costs nothing")
	for name, req := range map[string]order.CreateRequest{
		"smallest":       ok,
		"largest amount": with(func(r *order.CreateRequest) { r.AmountCents = order.MaxAmountCents }),
		"largest user":   with(func(r *order.CreateRequest) { r.UserID = 1<<63 - 1 }),
		"longest key":    with(func(r *order.CreateRequest) { r.IdempotencyKey = strings.Repeat("~", 255) }),
		"shortest key":   with(func(r *order.CreateRequest) { r.IdempotencyKey = "!" }),
	} {
		_, _, err := s.Create(t.Context(), req)
		require.NoError(t, err, name)
	}
}

func TestNewServiceRefusesAnIncompleteConfig(t *testing.T) {
	t.Parallel()
	_, err := order.NewService(order.Config{})
	require.Error(t, err)
	_, err = order.NewService(order.Config{DB: newSQLite(t).db(t), Default: halfbox.DeliveryCDC})
	require.ErrorContains(t, err, "cdc")
}
