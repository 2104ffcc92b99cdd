package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// writeVersions commits events of a key, in one transaction.
func writeVersions(t testing.TB, db *database.DB, key string, from, to int64) {
	t.Helper()
	w := newTestWriter(t, db, func(c *WriterConfig) { c.Ordered = true })
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
		for v := from; v <= to; v++ {
			at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			require.NoError(t, err)
			ev := event(key)
			ev.AggregateVersion, ev.Type = v, fmt.Sprint("t.v", v)
			require.NoError(t, w.WriteTx(tx, ev, at))
		}
		return nil
	}))
}

func orderedRelay(t testing.TB, db *database.DB, mode ClaimMode, policy HeadOfLine, sink Sink, change ...func(*RelayConfig)) *Relay {
	t.Helper()
	cfg := testConfig(t, db, sink)
	cfg.Claim, cfg.Ordered = mode, map[string]HeadOfLine{sink.Name(): policy}
	for _, c := range change {
		c(&cfg)
	}
	return newTestRelay(t, cfg)
}

// keysSent are key and version of what was sent, send by send.
func keysSent(s *fakeSink) (out []string) {
	for _, batch := range s.all() {
		var one []string
		for _, r := range batch {
			one = append(one, fmt.Sprint(r.PartitionKey, r.AggregateVersion))
		}
		out = append(out, strings.Join(one, " "))
	}
	return out
}

// TestOneVersionOfEachKeyAtATime: a batch has many keys, and one row of each.
func TestOneVersionOfEachKeyAtATime(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		writeVersions(t, db, "A", 1, 3)
		writeVersions(t, db, "B", 7, 8)
		writeVersions(t, db, "C", 1, 1)
		sink := newFakeSink(nil)
		r := orderedRelay(t, db, mode, HeadOfLineBlock, sink)
		untilIdle(t, r)
		require.Equal(t, []string{"A1 B7 C1", "A2 B8", "A3"}, keysSent(sink))
		require.Zero(t, totalMisses(r))
	})
}

// TestDeadLetterAtTheHeadOfItsKey under both policies, and what is listed.
func TestDeadLetterAtTheHeadOfItsKey(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for _, policy := range []HeadOfLine{HeadOfLineBlock, HeadOfLinePark} {
			db := e.db(t)
			require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
			writeVersions(t, db, "A", 1, 4)
			writeVersions(t, db, "B", 1, 2)
			bad := true
			sink := newFakeSink(nil)
			sink.answer = func(_ context.Context, batch []Record) error {
				for _, r := range batch {
					if bad && r.PartitionKey == "A" && r.AggregateVersion == 2 {
						return Refused(errors.New("too large"))
					}
				}
				return nil
			}
			r := orderedRelay(t, db, mode, policy, sink)
			untilIdle(t, r)
			require.NoError(t, r.statsOnce(t.Context()))
			keys, err := BlockedKeys(t.Context(), db, "main", "", 0)
			require.NoError(t, err)
			require.Len(t, keys, 1)
			want := BlockedKey{Key: "A", Version: 2, MsgID: keys[0].MsgID, EventType: "t.v2", Since: keys[0].Since, DeadLetters: 1}
			want.LastError = ReasonRefused + ": " + ErrRefused.Error() + ": too large"
			require.NotEmpty(t, want.MsgID)
			require.NotNil(t, want.Since)
			if policy == HeadOfLinePark {
				require.Equal(t, []BlockedKey{want}, keys)
				require.Equal(t, 5, countStatus(t, db, StatusSuccess), "the key goes on without it")
				require.Zero(t, testutil.ToFloat64(r.metrics.blocked.WithLabelValues("main")))
				continue
			}
			want.Waiting = 2
			require.Equal(t, []BlockedKey{want}, keys)
			require.Equal(t, 3, countStatus(t, db, StatusSuccess), "A1, B1 and B2; the dead letter holds its key")
			require.EqualValues(t, 1, testutil.ToFloat64(r.metrics.blocked.WithLabelValues("main")))
			more, err := BlockedKeys(t.Context(), db, "main", "A", 0)
			require.NoError(t, err)
			require.Empty(t, more)

			bad = false
			_, err = r.store.exec(t.Context(), "UPDATE t_event_record SET status = 'WAIT' WHERE status = 'FAIL'")
			require.NoError(t, err)
			untilIdle(t, r)
			require.Equal(t, 6, countStatus(t, db, StatusSuccess))
			require.NoError(t, r.statsOnce(t.Context()))
			require.Zero(t, testutil.ToFloat64(r.metrics.blocked.WithLabelValues("main")))
		}
	})
}

// TestRetryHoldsItsKey: what waits for its retry is still the head of its key.
func TestRetryHoldsItsKey(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		writeVersions(t, db, "A", 1, 2)
		writeVersions(t, db, "B", 1, 2)
		fails := 1
		sink := newFakeSink(nil)
		sink.answer = func(_ context.Context, batch []Record) error {
			if batch[0].PartitionKey == "A" && batch[0].AggregateVersion == 1 && len(batch) == 1 && fails > 0 {
				fails--
				return errors.New("no")
			}
			if len(batch) > 1 {
				return errors.New("one by one")
			}
			return nil
		}
		r := orderedRelay(t, db, mode, HeadOfLineBlock, sink, func(c *RelayConfig) { c.BackoffBase = 1e12; c.BackoffCap = 1e13 })
		untilIdle(t, r)
		require.Equal(t, []string{"A1 B1", "A1", "B1", "B2"}, keysSent(sink))
		makeDue(t, db)
		untilIdle(t, r)
		require.Equal(t, []string{"A1", "A2"}, keysSent(sink)[4:])
	})
}

// TestHotKeyHoldsUpNoOther: a key with a large backlog lies before many others. They do not wait for it, and it does
// not wait for another pass over the table either.
func TestHotKeyHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		const hot, others = 3000, 200
		writeVersions(t, db, "HOT", 1, hot)
		for i := range others {
			writeVersions(t, db, fmt.Sprint("K", i), 1, 1)
		}
		sink := newFakeSink(nil)
		r := caughtUp(orderedRelay(t, db, mode, HeadOfLineBlock, sink))
		claims := 0
		for len(sink.count()) < others+1 {
			mustOnce(t, r)
			claims++
			o := r.loops[0].order
			t.Log(claims, len(sink.count()), o.after, o.page, o.held, len(o.ready))
			require.Less(t, claims, 40, "pages grow, so the others are found soon")
		}
		require.Greater(t, sink.count()["HOT"], 3, "it went on meanwhile")
		var versions []int64
		for _, batch := range sink.all() {
			for _, rec := range batch {
				if rec.PartitionKey == "HOT" {
					versions = append(versions, rec.AggregateVersion)
				}
			}
		}
		require.True(t, slices.IsSorted(versions))
		require.EqualValues(t, len(versions), versions[len(versions)-1])
	})
}

// TestBlockedKeyHoldsUpNoOther: a dead letter holds a key with a large backlog, which a relay goes through again and
// again. A new event of another key is sent in the next round, wherever the relay is; and after a pass in vain it rests.
func TestBlockedKeyHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		var looks atomic.Int32
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if strings.Contains(query, "SELECT id, partition_key, aggregate_version, reclaim_count") {
				looks.Add(1)
			}
			return nil
		}}})
		writeVersions(t, db, "HELD", 1, 2500)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL' WHERE aggregate_version = 1").Error)
		sink := newFakeSink(nil)
		r := caughtUp(orderedRelay(t, db, mode, HeadOfLineBlock, sink))
		o := r.loops[0].order
		sent := 0
		fresh := func() {
			t.Helper()
			sent++
			writeVersions(t, db, fmt.Sprint("K", sent), 1, 1)
			require.Equal(t, 1, mustOnce(t, r).claimed)
			require.Equal(t, sent, countStatus(t, db, StatusSuccess))
		}
		passes := 0
		for rounds := 0; passes < 2; rounds++ {
			require.Less(t, rounds, 40)
			o.rest = time.Time{}
			if fresh(); o.after == (cursor{}) {
				passes++
				require.False(t, o.rest.IsZero(), "it has found nothing else in this pass")
			}
		}
		require.Greater(t, sent, 4, "a pass takes several rounds")

		o.rest = time.Now().Add(time.Hour)
		looks.Store(0)
		require.Zero(t, mustOnce(t, r).claimed)
		require.EqualValues(t, 1, looks.Load(), "the newest alone")
		fresh()
		o.rest = time.Time{}
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'WAIT' WHERE status = 'FAIL'").Error)
		eventually(t, func() bool { mustOnce(t, r); return countStatus(t, db, StatusWait) < 2400 }, "the key goes on when it is redriven")
		o.rewind()
		o.rest = time.Time{}
		require.NoError(t, db.Write.Exec("DELETE FROM t_event_record WHERE aggregate_version > 30").Error)
		untilIdle(t, r)
		require.Zero(t, countStatus(t, db, StatusWait))
		require.True(t, o.rest.IsZero(), "there is no rest where nothing is held")
	})
}

// TestPredecessorIsOneStep, however many versions a key has below and above.
func TestPredecessorIsOneStep(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		s := newStore(db)
		writeVersions(t, db, "HOT", 1, 2000)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS' WHERE aggregate_version < 1000").Error)
		rows := []keyed{{id: 1000, key: "HOT", version: 1000}, {id: 1001, key: "HOT", version: 1001}, {id: 1, key: "HOT", version: 1}}
		query, args := s.predecessorsSQL("main", rows, 0, false)
		if db.Dialect == database.SQLite {
			var plan []struct{ Detail string }
			require.NoError(t, db.Write.Raw("EXPLAIN QUERY PLAN "+query, args...).Scan(&plan).Error)
			steps := 0
			for _, step := range plan {
				require.NotContains(t, step.Detail, "TEMP B-TREE")
				if strings.Contains(step.Detail, "t_event_record") {
					steps++
					require.Contains(t, step.Detail, "INDEX idx_key_version (sink=? AND partition_key=? AND aggregate_version<?)")
				}
			}
			require.Equal(t, 3, steps)
		} else {
			require.Less(t, rowsRead(t, db, query, args), 20)
		}
		held, err := s.heldBack(t.Context(), "main", rows, false)
		require.NoError(t, err)
		require.Equal(t, []bool{false, true, false}, held)
	})
}

// rowsRead is how many index entries and rows MySQL reads for a query.
func rowsRead(t *testing.T, db *database.DB, query string, args []any) (n int) {
	t.Helper()
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
		require.NoError(t, tx.Exec("FLUSH STATUS").Error)
		_, err := collect(tx.Raw(query, args...), func(*sql.Rows) (struct{}, error) { return struct{}{}, nil })
		require.NoError(t, err)
		var counters []struct {
			Name  string `gorm:"column:Variable_name"`
			Value int    `gorm:"column:Value"`
		}
		require.NoError(t, tx.Raw("SHOW SESSION STATUS LIKE 'Handler_read%'").Scan(&counters).Error)
		for _, c := range counters {
			n += c.Value
		}
		return nil
	}))
	return n
}

func TestOrderedWriterIsStrict(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	w := newTestWriter(t, e.db(t), func(c *WriterConfig) { c.Ordered = true })
	for name, change := range map[string]func(*halfbox.Event){
		"another key": func(ev *halfbox.Event) { ev.PartitionKey = "user-1" },
		"no version":  func(ev *halfbox.Event) { ev.AggregateVersion = 0 },
	} {
		ev := event("A")
		change(&ev)
		_, err := w.PublishInTx(t.Context(), ev, insertLocal)
		require.ErrorIs(t, err, ErrInvalidEvent, name)
	}
	ev := event("A")
	ev.PartitionKey = ""
	_, err := w.PublishInTx(t.Context(), ev, insertLocal)
	require.NoError(t, err)
}

// partitionedSink is a fakeSink with a partition for each first letter of a key.
type partitionedSink struct {
	*fakeSink
	err error
}

func (s partitionedSink) Partitions(_ context.Context, batch []Record) (out []string, err error) {
	for _, r := range batch {
		out = append(out, r.PartitionKey[:1])
	}
	return out, s.err
}

func TestBatchIsOfOnePartition(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	for _, key := range []string{"A1-", "B1-", "A2-", "B2-", "A3-"} {
		writeVersions(t, db, key, 1, 1)
	}
	sink := partitionedSink{fakeSink: newFakeSink(nil)}
	untilIdle(t, orderedRelay(t, db, "", HeadOfLineBlock, sink))
	require.Equal(t, []string{"A1-1 A2-1 A3-1", "B1-1 B2-1"}, keysSent(sink.fakeSink))

	writeVersions(t, db, "A1-", 2, 2)
	writeVersions(t, db, "A2-", 2, 2)
	sink.err = errors.New("not known")
	untilIdle(t, orderedRelay(t, db, "", HeadOfLineBlock, sink))
	require.Equal(t, []string{"A1-2", "A2-2"}, keysSent(sink.fakeSink)[2:])
}
