package outbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

func TestPublishInTxWritesRecordWithLocalRow(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		nudges := 0
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Nudge = func() { nudges++ } })
		ev := event("A1")
		ev.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		receipt, err := w.PublishInTx(t.Context(), ev, insertLocal)
		require.NoError(t, err)
		require.Equal(t, halfbox.DeliveryOutbox, receipt.Delivery)
		require.Equal(t, 1, nudges)

		got, err := Get(t.Context(), db, receipt.MsgID)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, StatusWait, got[0].Status)
		require.Equal(t, "TOPIC", got[0].Destination)
		require.Equal(t, "A1", got[0].AggregateID)
		require.Contains(t, got[0].Headers, ev.TraceParent)
		msgID, decoded, err := halfbox.Decode(got[0].Payload)
		require.NoError(t, err)
		require.Equal(t, receipt.MsgID, msgID)
		require.Equal(t, "A1", decoded.Subject)
		var local string
		require.NoError(t, db.Read.Raw("SELECT msg_id FROM t_local").Scan(&local).Error)
		require.Equal(t, receipt.MsgID, local)

		_, err = Get(t.Context(), db, "nobody")
		require.ErrorIs(t, err, ErrNotFound)
	})
}

func TestPublishInTxRollsBackTogether(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Nudge = func() { t.Error("nudged without a commit") } })
		boom := errors.New("boom")
		_, err := w.PublishInTx(t.Context(), event("A1"), func(tx *gorm.DB, at halfbox.Attempt) error {
			require.NoError(t, insertLocal(tx, at))
			return boom
		})
		require.ErrorIs(t, err, halfbox.ErrRolledBack)
		require.ErrorIs(t, err, boom)

		big := newTestWriter(t, db, func(c *WriterConfig) { c.MaxPayload = 10 })
		_, err = big.PublishInTx(t.Context(), event("A1"), insertLocal)
		require.ErrorIs(t, err, ErrTooLarge)
		require.ErrorIs(t, err, halfbox.ErrRolledBack)

		for _, bad := range []func(*halfbox.Event){
			func(ev *halfbox.Event) { ev.Subject = "" },
			func(ev *halfbox.Event) { ev.Subject = strings.Repeat("x", maxName+1) },
			func(ev *halfbox.Event) { ev.Type = "" },
			func(ev *halfbox.Event) { ev.Data = []byte("{") },
			func(ev *halfbox.Event) { ev.PartitionKey = "\xff" },
			func(ev *halfbox.Event) { ev.Destination = strings.Repeat("x", maxDestination+1) },
		} {
			ev := event("A1")
			bad(&ev)
			_, err := w.PublishInTx(t.Context(), ev, insertLocal)
			require.ErrorIs(t, err, ErrInvalidEvent)
			require.ErrorIs(t, err, halfbox.ErrRolledBack)
		}
		var n int64
		require.NoError(t, db.Read.Raw("SELECT (SELECT COUNT(*) FROM t_local) + (SELECT COUNT(*) FROM t_event_record)").Scan(&n).Error)
		require.Zero(t, n)
	})
}

func TestPublishInTxMakesOneNewAttemptWhenVoided(t *testing.T) {
	t.Parallel()
	db := newSQLite(t).db(t)
	w := newTestWriter(t, db)
	var seen []string
	voidFirst := func(voids int) func(*gorm.DB, halfbox.Attempt) error {
		seen = nil
		return func(tx *gorm.DB, at halfbox.Attempt) error {
			seen = append(seen, at.MsgID)
			if len(seen) <= voids {
				return halfbox.ErrVoided
			}
			return insertLocal(tx, at)
		}
	}
	receipt, err := w.PublishInTx(t.Context(), event("A1"), voidFirst(1))
	require.NoError(t, err)
	require.Len(t, seen, 2)
	require.NotEqual(t, seen[0], seen[1])
	require.Equal(t, seen[1], receipt.MsgID)

	_, err = w.PublishInTx(t.Context(), event("A2"), voidFirst(9))
	require.ErrorIs(t, err, halfbox.ErrVoided)
	require.Len(t, seen, 2)
}

func TestPublishInTxCommitAnswerLost(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.open(t, database.Options{Hooks: database.Hooks{After: func(op database.Op, _ string) error {
			if op == database.OpCommit {
				return errors.New("connection lost")
			}
			return nil
		}}})
		nudged := false
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Nudge = func() { nudged = true } })
		receipt, err := w.PublishInTx(t.Context(), event("A1"), insertLocal)
		require.ErrorIs(t, err, halfbox.ErrUnknown)
		require.True(t, nudged)
		_, err = Get(t.Context(), e.db(t), receipt.MsgID)
		require.NoError(t, err)
	})
}

func TestUniqueKeysAreToldApart(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		w := newTestWriter(t, db)
		other := newTestWriter(t, db, func(c *WriterConfig) { c.Sink = "other" })
		receipt, err := w.PublishInTx(t.Context(), event("A1"), insertLocal)
		require.NoError(t, err)
		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			again, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			require.NoError(t, err)
			require.ErrorIs(t, w.WriteTx(tx, event("A2"), receipt.Attempt), ErrDuplicateMessage)
			require.ErrorIs(t, w.WriteTx(tx, event("A1"), again), ErrDuplicateFact)
			same := w.WriteTx(tx, event("A1"), receipt.Attempt) // violates both keys
			require.ErrorIs(t, same, ErrDuplicateMessage)
			require.NotErrorIs(t, same, ErrDuplicateFact)
			return other.WriteTx(tx, event("A1"), receipt.Attempt) // the same message for another sink
		}))
		got, err := Get(t.Context(), db, receipt.MsgID)
		require.NoError(t, err)
		require.Len(t, got, 2)
	})
}

// TestEveryCharacterOfAKeyCounts, trailing spaces too, on every engine: the envelope refuses them, the keys do not rely
// on it.
func TestEveryCharacterOfAKeyCounts(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		w := newTestWriter(t, db)
		insert := func(subject, eventType string) error {
			at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			require.NoError(t, err)
			r, err := w.record(event("x"), at)
			require.NoError(t, err)
			r.BizNo, r.EventType = subject, eventType
			return w.store.insert(db.Write, r)
		}
		for _, key := range [][2]string{{"A", "t"}, {"A ", "t"}, {"A  ", "t"}, {"a", "t"}, {"Ä", "t"}, {"A\u0308", "t"}, {"A", "t "}, {"A", "T"}} {
			require.NoError(t, insert(key[0], key[1]), "%q", key)
			require.ErrorIs(t, insert(key[0], key[1]), ErrDuplicateFact, "%q", key)
			found, err := List(t.Context(), db, Filter{BizNo: key[0], EventType: key[1]})
			require.NoError(t, err)
			require.Len(t, found, 1, "%q", key)
		}
	})
}

func TestDeadlockRepeatsUnderSameAttempt(t *testing.T) {
	t.Parallel()
	db := newSQLite(t).db(t)
	w := newTestWriter(t, db)
	var seen []string
	_, err := w.PublishInTx(t.Context(), event("A1"), func(tx *gorm.DB, at halfbox.Attempt) error {
		seen = append(seen, at.MsgID)
		if len(seen) == 1 {
			return errDeadlock()
		}
		return insertLocal(tx, at)
	})
	require.NoError(t, err)
	require.Len(t, seen, 2)
	require.Equal(t, seen[0], seen[1])
}

func TestOutboxOrderIsTwoInsertsInOneTransaction(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		rec := &recorder{}
		db := e.open(t, database.Options{Hooks: rec.hooks()})
		w := newTestWriter(t, db)
		rec.reset()
		_, err := w.PublishInTx(t.Context(), event("A1"), insertLocal)
		require.NoError(t, err)
		require.Equal(t, []string{"begin", "exec INSERT t_local", "exec INSERT t_event_record", "commit"}, rec.all())
	})
}

func TestWriterConfigIsValidated(t *testing.T) {
	t.Parallel()
	db := newSQLite(t).db(t)
	for name, cfg := range map[string]WriterConfig{
		"no database":    {Sink: "main", Destination: "T"},
		"no sink":        {DB: db, Destination: "T"},
		"bad sink":       {DB: db, Sink: "a b", Destination: "T"},
		"no destination": {DB: db, Sink: "main"},
		"negative":       {DB: db, Sink: "main", Destination: "T", MaxPayload: -1},
	} {
		_, err := NewWriter(cfg)
		require.Error(t, err, name)
	}
	reg := prometheus.NewRegistry()
	_, err := NewWriter(WriterConfig{DB: db, Sink: "main", Destination: "T", Registerer: reg})
	require.NoError(t, err)
	_, err = NewWriter(WriterConfig{DB: db, Sink: "main", Destination: "T", Registerer: reg})
	require.Error(t, err, "two writers on one registry without a label")
}

// recorder keeps the statements that meet the driver, in short.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) hooks() database.Hooks {
	return database.Hooks{Before: func(op database.Op, query string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, strings.TrimSpace(string(op)+" "+short(query, op)))
		return nil
	}}
}

func short(query string, op database.Op) string {
	if op != database.OpExec && op != database.OpQuery {
		return ""
	}
	words := strings.Fields(query)
	for _, w := range words {
		if strings.HasPrefix(w, "t_") {
			return words[0] + " " + w
		}
	}
	return words[0]
}

func (r *recorder) reset() { r.mu.Lock(); r.seen = nil; r.mu.Unlock() }

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.seen...)
}

var _ interface {
	PublishInTx(context.Context, halfbox.Event, func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error)
} = (*Writer)(nil)
