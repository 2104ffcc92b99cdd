package points_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/points"
)

func TestCredited(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		r.counted(nil) // the series are there from the start
		f := newFact(7, 9990)
		r.handle(points.Credited, f.message(t))
		acc := r.account(7)
		require.EqualValues(t, 99, acc.Balance, "one for each full hundred cents")
		require.Len(t, acc.Records, 1)
		rec := acc.Records[0]
		require.WithinDuration(t, time.Now(), rec.CreatedAt, time.Minute)
		require.Equal(t, points.Record{
			ID: rec.ID, MsgID: f.msgID, UserID: 7, OrderNo: f.orderNo, Type: points.Earn, Points: 99, BalanceAfter: 99,
			FactsHash: rec.FactsHash, CreatedAt: rec.CreatedAt,
		}, rec)
		r.handle(points.Credited, newFact(7, 50).message(t))
		r.requireBalance(7, 99, 2)
		r.counted(map[points.Outcome]int{points.Credited: 2})
		require.Empty(t, r.deadLetters())
	})
}

func TestSameMessageFiftyTimesAtOnce(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		const deliveries = 50
		r := newRig(t, e.open(t, database.Options{LockWait: 10 * time.Second}), points.Hooks{})
		m := newFact(7, 500).message(t)
		together(deliveries, func(int) {
			if _, err := r.Handle(t.Context(), m); err != nil {
				t.Error(err)
			}
		})
		r.requireBalance(7, 5, 1)
		r.counted(map[points.Outcome]int{points.Credited: 1, points.DuplicateMessage: deliveries - 1})
	})
}

// The same order arrives under two message ids: its first attempt was voided, or rescue sent it again.
func TestSameOrderUnderTwoMessagesAtOnce(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		const deliveries = 50
		r := newRig(t, e.open(t, database.Options{LockWait: 10 * time.Second}), points.Hooks{})
		f := newFact(7, 500)
		g := f
		g.msgID = uuid.Must(uuid.NewV7()).String()
		messages := []points.Message{f.message(t), g.message(t)}
		together(deliveries, func(i int) {
			if _, err := r.Handle(t.Context(), messages[i%2]); err != nil {
				t.Error(err)
			}
		})
		r.requireBalance(7, 5, 1)
		// The one that won repeats by message id, the other by order.
		r.counted(map[points.Outcome]int{
			points.Credited: 1, points.DuplicateMessage: deliveries/2 - 1, points.DuplicateOrder: deliveries / 2,
		})
		require.Empty(t, r.deadLetters())
	})
}

func TestBalanceIsTheSumOfTheLedger(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		const users, each = 5, 12
		// Two handlers on two handles, as two processes have.
		rigs := []rig{
			newRig(t, e.open(t, database.Options{LockWait: 10 * time.Second}), points.Hooks{}),
			newRig(t, e.open(t, database.Options{LockWait: 10 * time.Second}), points.Hooks{}),
		}
		var deliveries []points.Message
		want := map[int64]int64{}
		for user := int64(1); user <= users; user++ {
			for n := range int64(each) {
				m := newFact(user, 100*(n+1)).message(t)
				want[user] += n + 1
				deliveries = append(deliveries, m, m, m)
			}
		}
		rand.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
		together(16, func(w int) {
			for i := w; i < len(deliveries); i += 16 {
				if _, err := rigs[i%2].Handle(t.Context(), deliveries[i]); err != nil {
					t.Error(err)
				}
			}
		})
		for user := int64(1); user <= users; user++ {
			rigs[0].requireBalance(user, want[user], each)
			// Every record says the balance after it: no update was lost on the way.
			var records []points.Record
			require.NoError(t, rigs[0].db.Read.Where("user_id = ?", user).Order("id").Find(&records).Error)
			var balance int64
			for _, rec := range records {
				balance += rec.Points
				require.Equal(t, balance, rec.BalanceAfter)
			}
		}
	})
}

// A body that was built again from the order's row states the same facts in other bytes.
func TestSameFactsOtherBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t, newSQLite(t).db(t), points.Hooks{})
	f := newFact(7, 500)
	r.handle(points.Credited, f.message(t))
	f.data = fmt.Sprintf(`{ "amount_cents": 500, "user_id": 7, "order_no": %q, "note": "new field" }`, f.orderNo)
	r.handle(points.DuplicateMessage, f.message(t))
	r.requireBalance(7, 5, 1)
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		first := newFact(7, 500)
		tests := map[string]func(*fact){
			"amount":            func(f *fact) { f.amount = 90000 },
			"user":              func(f *fact) { f.userID = 8 },
			"version":           func(f *fact) { f.version = 2 },
			"order":             func(f *fact) { f.orderNo = "another" },
			"order and message": func(f *fact) { f.msgID, f.amount = uuid.Must(uuid.NewV7()).String(), 90000 },
		}
		r := newRig(t, e.db(t), points.Hooks{})
		r.handle(points.Credited, first.message(t))
		n := 0
		for name, change := range tests {
			n++
			f := first
			change(&f)
			m := f.message(t)
			m.MsgID = f.msgID + name // the dead letters are told apart by the broker's id
			r.handle(points.Conflict, m)
			r.requireBalance(7, 5, 1)
			r.requireBalance(8, 0, 0)
			letters := r.deadLetters()
			require.Len(t, letters, n, name)
			for _, letter := range letters {
				if letter.MsgID == m.MsgID {
					require.Equal(t, m.Body, letter.Payload)
					require.Contains(t, letter.Reason, "other facts")
				}
			}
		}
		r.counted(map[points.Outcome]int{points.Credited: 1, points.Conflict: n})
		r.handle(points.DuplicateMessage, first.message(t)) // the right one is still a plain repetition
	})
}

// One message id with the facts of another booked order contradicts its own record, on every engine.
func TestMessageIDOfOneOrderWithTheFactsOfAnother(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		a, b := newFact(7, 500), newFact(8, 700)
		r.handle(points.Credited, a.message(t))
		r.handle(points.Credited, b.message(t))
		b.msgID = a.msgID
		r.handle(points.Conflict, b.message(t))
		require.Len(t, r.deadLetters(), 1)
		require.Contains(t, r.deadLetters()[0].Reason, a.msgID)
	})
}
