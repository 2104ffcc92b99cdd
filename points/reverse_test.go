package points_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/points"
)

// records are an order's records in the order they were written.
func (r rig) records(orderNo string) (found []points.Record) {
	r.t.Helper()
	require.NoError(r.t, r.db.Read.Where("order_no = ?", orderNo).Order("id").Find(&found).Error)
	return found
}

func TestReverse(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		other := newFact(7, 300)
		f := newFact(7, 9990)
		c := f.cancelled()
		r.handle(points.Credited, other.message(t))
		r.handle(points.Credited, f.message(t))
		r.handle(points.Reversed, c.message(t))
		r.requireBalance(7, 3, 3)
		got := r.records(f.orderNo)
		require.Len(t, got, 2)
		require.Equal(t, []any{points.Reverse, int64(-99), int64(3), c.msgID, int64(7)},
			[]any{got[1].Type, got[1].Points, got[1].BalanceAfter, got[1].MsgID, got[1].UserID})

		r.handle(points.DuplicateMessage, c.message(t))
		r.handle(points.DuplicateOrder, f.cancelled().message(t)) // the cancellation under another message id
		r.handle(points.DuplicateMessage, f.message(t))           // the EARN again, after all
		r.requireBalance(7, 3, 3)
		require.Empty(t, r.deadLetters())
		require.Equal(t, points.Reverse, r.account(7).Records[0].Type, "the newest record is shown")
	})
}

// The cancellation overtakes the order: the late EARN changes nothing, whatever it says.
func TestReverseBeforeEarn(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		f := newFact(7, 9990)
		c := f.cancelled()
		r.handle(points.ReversedFirst, c.message(t))
		r.requireBalance(7, 0, 2)
		got := r.records(f.orderNo)
		require.Equal(t, []any{"void:" + f.orderNo, points.Earn, int64(0), c.msgID, points.Reverse, int64(0)},
			[]any{got[0].MsgID, got[0].Type, got[0].Points, got[1].MsgID, got[1].Type, got[1].Points})
		r.handle(points.DuplicateMessage, c.message(t))
		late := f
		r.handle(points.EarnVoided, late.message(t))
		r.handle(points.EarnVoided, late.message(t))
		late.msgID, late.amount, late.userID = uuid.Must(uuid.NewV7()).String(), 500, 8
		r.handle(points.EarnVoided, late.message(t)) // exempt from the conflict rule
		r.handle(points.DuplicateMessage, c.message(t))
		r.requireBalance(7, 0, 2)
		r.requireBalance(8, 0, 0)
		require.Empty(t, r.deadLetters())
		r.counted(map[points.Outcome]int{points.ReversedFirst: 1, points.EarnVoided: 3, points.DuplicateMessage: 2})
	})
}

// A frozen account rejects EARN only.
func TestReverseOnAFrozenAccount(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		before, rejected, first := newFact(7, 1000), newFact(7, 500), newFact(7, 700)
		r.handle(points.Credited, before.message(t))
		require.NoError(t, r.db.Write.Exec("UPDATE t_points_account SET status = 'FROZEN' WHERE user_id = 7").Error)
		r.handle(points.Rejected, rejected.message(t))
		r.handle(points.Reversed, before.cancelled().message(t))
		r.requireBalance(7, 0, 3)
		r.handle(points.Reversed, rejected.cancelled().message(t)) // a zero REVERSE of a zero EARN
		r.handle(points.ReversedFirst, first.cancelled().message(t))
		r.handle(points.EarnVoided, first.message(t))
		r.requireBalance(7, 0, 6)
		require.Zero(t, r.records(rejected.orderNo)[1].Points)
		require.Empty(t, r.deadLetters())
	})
}

func TestReverseConflicts(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		earned, reversed, first := newFact(7, 500), newFact(7, 600), newFact(7, 700)
		r.handle(points.Credited, earned.message(t))
		r.handle(points.Credited, reversed.message(t))
		r.handle(points.Reversed, reversed.cancelled().message(t))
		firstCancelled := first.cancelled()
		r.handle(points.ReversedFirst, firstCancelled.message(t))
		n := 0
		for name, f := range map[string]fact{
			"amount of a credited order":           func() fact { f := earned.cancelled(); f.amount = 900; return f }(),
			"user of a credited order":             func() fact { f := earned.cancelled(); f.userID = 8; return f }(),
			"amount of a reversed order":           func() fact { f := reversed.cancelled(); f.amount = 900; return f }(),
			"version of a reversed order":          func() fact { f := reversed.cancelled(); f.version = 3; return f }(),
			"amount of one that was reversed once": func() fact { f := first.cancelled(); f.amount = 900; return f }(),
			"user of one that was reversed once":   func() fact { f := first.cancelled(); f.userID = 8; return f }(),
			"id of an EARN":                        func() fact { f := earned.cancelled(); f.msgID = earned.msgID; return f }(),
			"id of another REVERSE":                func() fact { f := earned.cancelled(); f.msgID = firstCancelled.msgID; return f }(),
		} {
			n++
			m := f.message(t)
			m.MsgID = name // the dead letters are told apart by the broker's id
			r.handle(points.Conflict, m)
			require.Len(t, r.deadLetters(), n, name)
			r.requireBalance(7, 5, 5)
			r.requireBalance(8, 0, 0)
		}
		for _, letter := range r.deadLetters() {
			require.Contains(t, letter.Reason, "other facts", letter.MsgID)
		}
	})
}

// The database fails in each statement of a REVERSE, with and without an EARN before it.
func TestDatabaseErrorInEachStatementOfAReverse(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		for want, statements := range map[points.Outcome]int{points.Reversed: 7, points.ReversedFirst: 8} {
			b := &breaker{}
			r := newRig(t, e.open(t, database.Options{Hooks: database.Hooks{Before: b.hook}}), points.Hooks{})
			for n := 1; n <= statements; n++ {
				f := newFact(7, 100)
				if want == points.Reversed {
					r.handle(points.Credited, f.message(t))
				}
				c := f.cancelled().message(t)
				b.arm(n)
				_, err := r.Handle(t.Context(), c)
				require.ErrorIs(t, err, errDown, "%d", n)
				b.arm(0)
				r.handle(want, c)
				require.Len(t, b.statements(), statements, "%v", b.statements())
				require.Len(t, r.records(f.orderNo), 2)
			}
			require.Zero(t, r.account(7).Balance)
		}
	})
}

// Whatever order EARN and REVERSE of an order come in, how often, and what runs beside them: a cancelled order ends
// with net zero points, every other with what it earned, and the balance is the sum of the ledger.
func TestAnyScheduleOfEarnAndReverse(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		// Two handlers on two handles, as two processes have.
		rigs := []rig{
			newRig(t, e.open(t, database.Options{LockWait: wait}), points.Hooks{}),
			newRig(t, e.open(t, database.Options{LockWait: wait}), points.Hooks{}),
		}
		user := int64(0)
		rapid.Check(t, func(rt *rapid.T) {
			user += 2 // two users of this schedule alone
			checkSchedule(rt, t, rigs, user)
		})
	})
}

const wait = 10 * time.Second

// delivered is a message of a schedule.
type delivered struct {
	fact
	handler int
}

func checkSchedule(rt *rapid.T, t *testing.T, rigs []rig, user int64) {
	orders := make([]fact, rapid.IntRange(1, 4).Draw(rt, "orders"))
	cancelled := make([]bool, len(orders))
	var schedule []delivered
	for i := range orders {
		orders[i] = newFact(user+rapid.Int64Range(0, 1).Draw(rt, "user"), rapid.Int64Range(0, 100000).Draw(rt, "amount"))
		messages := []fact{orders[i]}
		if rapid.Bool().Draw(rt, "sent under two ids") {
			again := orders[i]
			again.msgID = uuid.Must(uuid.NewV7()).String()
			messages = append(messages, again)
		}
		if cancelled[i] = rapid.Bool().Draw(rt, "cancelled"); cancelled[i] {
			messages = append(messages, orders[i].cancelled())
		}
		for _, m := range messages {
			for range rapid.IntRange(1, 3).Draw(rt, "times") {
				schedule = append(schedule, delivered{m, rapid.IntRange(0, 1).Draw(rt, "handler")})
			}
		}
	}
	schedule = rapid.Permutation(schedule).Draw(rt, "schedule")
	deliver(t, rigs, schedule, rapid.IntRange(1, 6).Draw(rt, "at once"))

	want := map[int64]int64{}
	for i, o := range orders {
		sum, records := int64(0), rigs[0].records(o.orderNo)
		for _, rec := range records {
			sum += rec.Points
		}
		net, n := o.amount/100, 1
		if cancelled[i] {
			net, n = 0, 2
		}
		require.Equal(rt, net, sum, "net of %+v: %+v", o, records)
		require.Len(rt, records, n)
		want[o.userID] += net
	}
	for u := user; u <= user+1; u++ {
		var sum int64
		require.NoError(rt, rigs[0].db.Read.Raw("SELECT COALESCE(SUM(points), 0) FROM t_points_record WHERE user_id = ?", u).Scan(&sum).Error)
		require.Equal(rt, want[u], sum, "sum of the ledger of %d", u)
		require.Equal(rt, want[u], rigs[0].account(u).Balance, "balance of %d", u)
	}
	require.Empty(rt, rigs[0].deadLetters())
}

// deliver hands the messages out in their order, to so many workers at once.
func deliver(t *testing.T, rigs []rig, schedule []delivered, workers int) {
	queue := make(chan delivered, len(schedule))
	for _, d := range schedule {
		queue <- d
	}
	close(queue)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for d := range queue {
				if _, err := rigs[d.handler].Handle(t.Context(), d.message(t)); err != nil {
					t.Error(fmt.Errorf("%+v: %w", d.fact, err))
				}
			}
		})
	}
	wg.Wait()
}
