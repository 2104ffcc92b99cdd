package checkback_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

const (
	rescuePoll  = 25 * time.Millisecond
	rescueLease = 10 * time.Second
	tick        = 10 * time.Millisecond
	// discardedIn bounds how long a broker of these tests takes to give half messages up.
	discardedIn = 60 * time.Second
)

// The heart of it: nobody could answer the checks, and the broker has given up. While the local transaction is open
// nothing is decided and the later halves wait; when it commits exactly its event is published, under the same id.
func TestRescue(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueOpenTransaction)
}

func rescueOpenTransaction(t *testing.T, w world) {
	db := w.open(t, database.Options{})
	look := w.open(t, database.Options{})
	var lost halfbox.Attempt
	var r rescuer
	var at string // other groups' halves may come before
	o, err := w.order(t, db, func() {
		w.discarded(t)
		lost = w.absent(t)
		w.discarded(t)
		r = w.rescue(t, database.Options{LockWait: 100 * time.Millisecond})
		// On SQLite the open transaction keeps every other writer out, the rescue's own lease included.
		eventually(t, func() bool {
			return r.value(t, "halfbox_rescue_held") == 1 || db.Dialect == database.SQLite && r.value(t, "halfbox_rescue_errors_total") > 0
		}, "it does not wait for the open transaction")
		at = w.position(t, look)
		decided := func() bool {
			return len(records(t, look)) > 0 || rows(t, look, "1 = 1") > 0 || w.position(t, look) != at
		}
		require.Never(t, decided, 20*rescuePoll, rescuePoll, "something was decided while the transaction was open")
	})
	require.NoError(t, err)

	eventually(t, func() bool { return w.position(t, look) != at && r.outcome(t, "rolled_back") == 1 }, "the later half is not decided")
	require.Equal(t, 1, r.outcome(t, "republished"))
	eventually(t, func() bool { return r.value(t, "halfbox_rescue_held") == 0 }, "it still waits") // a round tells at its end
	require.Equal(t, 1, rows(t, look, "status = 'VOID' AND msg_id = ?", lost.MsgID))
	require.Equal(t, 1, rows(t, look, "status <> 'VOID'"))
	got := records(t, look)
	require.Len(t, got, 1)
	id, ev, err := halfbox.Decode(got[o.MsgID])
	require.NoError(t, err)
	require.Equal(t, o.MsgID, id)
	require.Equal(t, []any{order.EventCreated, o.OrderNo, int64(1), o.CreatedAt}, []any{ev.Type, ev.Subject, ev.AggregateVersion, ev.Time})
	require.JSONEq(t, fmt.Sprintf(`{"order_no":%q,"user_id":7,"amount_cents":9990}`, o.OrderNo), string(ev.Data))
	var destination, delivery string
	require.NoError(t, look.Read.Raw("SELECT destination, delivery FROM t_event_record").Row().Scan(&destination, &delivery))
	require.Equal(t, []string{w.topic, "outbox"}, []string{destination, delivery}, "to the topic of the half message")
	// A record that is gone and a position that was lost change nothing: asked again the answers are the same.
	r.stop()
	require.NoError(t, look.Write.Exec("DELETE FROM t_progress").Error)
	again := w.rescue(t, database.Options{})
	eventually(t, func() bool { return again.outcome(t, "recorded") == 1 && again.outcome(t, "rolled_back") == 1 }, "not read again")
	require.Len(t, records(t, look), 1)
}

// A local transaction that rolls back after the discard leaves nothing but the tombstone.
func TestRescueRolledBack(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueRolledBack)
}

func rescueRolledBack(t *testing.T, w world) {
	db := w.open(t, database.Options{})
	// Its COMMIT never comes: what is open when the connection goes is rolled back.
	failing := w.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, _ string) error {
		if op == database.OpCommit {
			return driver.ErrBadConn
		}
		return nil
	}}})
	_, err := w.order(t, failing, nil)
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	ids := w.discarded(t)
	r := w.rescue(t, database.Options{})
	eventually(t, func() bool { return r.outcome(t, "rolled_back") == 1 }, "not decided")
	require.Empty(t, records(t, db))
	require.Equal(t, 1, rows(t, db, "1 = 1"))
	require.Equal(t, 1, rows(t, db, "status = 'VOID' AND msg_id = ?", ids[0]))
}

// Two rescuers at once: every half is decided by one of them, once.
func TestRescueTwoAtOnce(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueTwoAtOnce)
}

func rescueTwoAtOnce(t *testing.T, w world) {
	const halves = 40
	db := w.open(t, database.Options{})
	want := map[string]bool{}
	for i := range halves {
		if i%2 == 0 {
			o, err := w.order(t, db, nil)
			require.NoError(t, err)
			want[o.MsgID] = true
		} else {
			w.absent(t)
		}
	}
	w.discarded(t)
	// Leases so short that they run out in the middle of the work: the position keeps the two apart all the same.
	quick := func(c *checkback.RescueConfig) { c.Lease, c.Poll, c.Batch = 5*time.Millisecond, time.Millisecond, 5 }
	pair := []rescuer{w.rescue(t, database.Options{}, quick), w.rescue(t, database.Options{}, quick)}
	sum := func(outcome string) int { return pair[0].outcome(t, outcome) + pair[1].outcome(t, outcome) }
	eventually(t, func() bool { return sum("republished")+sum("recorded") >= halves/2 && sum("rolled_back") >= halves/2 }, "not all decided")
	got := records(t, db)
	require.Len(t, got, len(want))
	for id := range want {
		require.Contains(t, got, id)
	}
	require.Equal(t, halves/2, sum("republished"), "each is recorded once")
	require.Zero(t, sum("recorded"))
	require.Equal(t, halves/2, sum("rolled_back"))
}

// The record and the position are one transaction: a rescuer that dies between them has done nothing.
func TestRescueDiesBetweenRecordAndPosition(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueDiesBetween)
}

func rescueDiesBetween(t *testing.T, w world) {
	db := w.open(t, database.Options{})
	o, err := w.order(t, db, nil)
	require.NoError(t, err)
	w.discarded(t)
	var dead atomic.Bool
	var deaths atomic.Int64
	dead.Store(true)
	r := w.rescue(t, database.Options{}, func(c *checkback.RescueConfig) {
		c.Hooks.BeforeAdvance = func() {
			if dead.Load() {
				deaths.Add(1)
				panic("killed")
			}
		}
	})
	eventually(t, func() bool { return deaths.Load() >= 3 }, "it does not go on after a panic")
	require.Empty(t, records(t, db))
	at := w.position(t, db) // past other groups' halves at most
	require.Zero(t, r.outcome(t, "republished"))
	dead.Store(false)
	eventually(t, func() bool { return r.outcome(t, "republished") == 1 }, "not rescued in the end")
	require.Len(t, records(t, db), 1)
	require.Contains(t, records(t, db), o.MsgID)
	require.NotEqual(t, at, w.position(t, db))
	require.Positive(t, r.value(t, "halfbox_rescue_errors_total"))
}

// The database is away while rescuing: nothing is decided, nothing is lost.
func TestRescueWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueDatabaseDown)
}

func rescueDatabaseDown(t *testing.T, w world) {
	db := w.open(t, database.Options{})
	o, err := w.order(t, db, nil)
	require.NoError(t, err)
	w.discarded(t)
	// Every statement in turn is the first that fails.
	for nth := range 6 {
		require.NoError(t, db.Write.Exec("DELETE FROM t_progress").Error)
		require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
		var down atomic.Bool
		var n atomic.Int64
		hooks := database.Hooks{Before: func(database.Op, string) error {
			if down.Load() && n.Add(1) > int64(nth) {
				return errors.New("injected: connection lost")
			}
			return nil
		}}
		r := w.rescue(t, database.Options{Hooks: hooks}, func(*checkback.RescueConfig) { down.Store(true) })
		eventually(t, func() bool { return r.value(t, "halfbox_rescue_errors_total") >= 2 }, "the failure does not show")
		require.Empty(t, records(t, db), "failing from statement %d on", nth)
		down.Store(false)
		eventually(t, func() bool { return r.outcome(t, "republished") == 1 }, "it does not go on")
		require.Contains(t, records(t, db), o.MsgID)
		r.stop()
	}
}

// The database that the check asks is away: UNKNOWN holds the position.
func TestRescueWhileTheCheckCannotAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newSQLite(t), quickBroker(t).Addr())
	db := w.open(t, database.Options{})
	lost := w.absent(t)
	w.discarded(t)
	var down atomic.Bool
	checks := w.open(t, database.Options{Hooks: database.Hooks{Before: func(database.Op, string) error {
		if down.Load() {
			return errors.New("injected: connection lost")
		}
		return nil
	}}})
	down.Store(true)
	r := w.rescue(t, database.Options{}, func(c *checkback.RescueConfig) { c.Checker = newChecker(t, checks).Checker })
	eventually(t, func() bool { return r.value(t, "halfbox_rescue_held") == 1 }, "it does not wait")
	require.Empty(t, w.position(t, db))
	down.Store(false)
	eventually(t, func() bool { return r.outcome(t, "rolled_back") == 1 }, "it does not go on")
	require.Equal(t, 1, rows(t, db, "status = 'VOID' AND msg_id = ?", lost.MsgID))
}

// What can never be decided is kept for an operator; other groups' halves are theirs. Neither holds the next ones up.
func TestRescueMovesPastWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueMovesPast)
}

func rescueMovesPast(t *testing.T, w world) {
	db := w.open(t, database.Options{})
	w.absent(t, func(h *enginetest.Half) { h.Group = w.group + "-other" })
	unregistered := w.absent(t, func(h *enginetest.Half) { h.Tags = "order.exploded" })
	unreadable := w.absent(t, func(h *enginetest.Half) { h.Body = []byte("not an event \xff") })
	otherID := w.absent(t, func(h *enginetest.Half) { h.Keys = "ANOTHER" })
	w.discarded(t)
	o, err := w.order(t, db, nil)
	require.NoError(t, err)
	w.discarded(t)
	r := w.rescue(t, database.Options{})
	eventually(t, func() bool { return r.outcome(t, "republished") == 1 }, "the last one is not rescued")
	require.Equal(t, 3, r.outcome(t, "dead_letter"))
	require.Contains(t, records(t, db), o.MsgID)
	require.Zero(t, rows(t, db, "status = 'VOID'"), "nothing is guessed about them")
	var letters []struct{ Consumer, MsgID, Topic, Reason, State string }
	require.NoError(t, db.Read.Raw("SELECT consumer, msg_id, topic, reason, state FROM t_dead_letter").Scan(&letters).Error)
	reasons := map[string]string{}
	for _, l := range letters {
		require.Equal(t, []string{"rescue", w.topic, "DEAD"}, []string{l.Consumer, l.Topic, l.State})
		reasons[l.MsgID] = l.Reason
	}
	require.Len(t, reasons, 3)
	require.Contains(t, reasons[unregistered.MsgID], `no resolver for event type "order.exploded"`)
	require.Contains(t, reasons[unreadable.MsgID], "not a valid event envelope")
	require.Contains(t, reasons[otherID.MsgID], "ANOTHER")
}

// A message that has a record already is done.
func TestRescueOfWhatIsRecordedAlready(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		db := w.open(t, database.Options{})
		writer, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "rocketmq", Destination: "x"})
		require.NoError(t, err)
		o, err := w.order(t, db, nil)
		require.NoError(t, err)
		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			return writer.WriteTx(tx, halfbox.Event{Type: order.EventCreated, Source: "/x", Subject: o.OrderNo, Data: []byte("{}"), Time: time.Now()},
				halfbox.Attempt{MsgID: o.MsgID, Delivery: halfbox.DeliveryOutbox})
		}))
		w.discarded(t)
		before := records(t, db)
		r := w.rescue(t, database.Options{})
		eventually(t, func() bool { return r.outcome(t, "recorded") == 1 }, "not seen as done")
		require.Equal(t, before, records(t, db))
		require.Zero(t, r.outcome(t, "republished"))
	})
}

func TestNewRescuerRefusesAnIncompleteConfig(t *testing.T) {
	t.Parallel()
	_, err := checkback.NewRescuer(checkback.RescueConfig{})
	require.ErrorContains(t, err, "DB")
}

// On RocketMQ, with MySQL: a broker that gives up after two checks a second apart.
func TestRescueOnRocketMQ(t *testing.T) {
	t.Parallel()
	q := enginetest.OwnRocketMQ(t, "transactionTimeOut=1000", "transactionCheckInterval=1000", "transactionCheckMax=2")
	nameServer := q.NameServers()[0]
	sub := func(name string, test func(t *testing.T, w world)) {
		t.Run(name, func(t *testing.T) { test(t, newWorld(t, newMySQL(t), nameServer)) })
	}
	sub("no topic yet", rescueWithoutTopic) // the first: RocketMQ makes the topic with the first half it gives up
	sub("open transaction", rescueOpenTransaction)
	sub("rolled back", rescueRolledBack)
	sub("two at once", rescueTwoAtOnce)
	sub("dies between record and position", rescueDiesBetween)
	sub("database down", rescueDatabaseDown)
	sub("not its own", rescueMovesPast)
	sub("cancellation", rescueCancellation)
	sub("may have been purged", rescueMayHaveBeenPurged)
}
