package outbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// age sets a column of the application's clock back.
func age(t testing.TB, db *database.DB, column string, by time.Duration, where string) {
	t.Helper()
	s := newStore(db)
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET "+column+" = ? WHERE "+where, s.fact(time.Now().Add(-by))).Error)
}

// TestRetentionDeletesOldSuccessOnly: records of every state and age; only those that were made and sent longer ago go
// (R8, R9).
func TestRetentionDeletesOldSuccessOnly(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		mixed(t, db, 450)
		age(t, db, "sent_at", time.Hour, "status = 'SUCCESS'")
		age(t, db, "created_at", 8*24*time.Hour, "id % 7 > 0")
		age(t, db, "sent_at", 8*24*time.Hour, "status = 'SUCCESS' AND id % 2 = 0")
		wanted := func() (n int) {
			for _, e := range everyEntry(t, db) {
				if e.Status == StatusSuccess && time.Since(e.CreatedAt) > 7*24*time.Hour && time.Since(*e.SentAt) > 7*24*time.Hour {
					n++
				}
			}
			return n
		}
		before, old := len(everyEntry(t, db)), wanted()
		require.Equal(t, 900, before)
		require.Greater(t, old, 50)
		cfg := testConfig(t, db, newFakeSink(nil))
		cfg.Retention = 7 * 24 * time.Hour
		r := newTestRelay(t, cfg)
		n, err := r.purgeOld(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, old, n)
		require.Zero(t, wanted())
		require.Len(t, everyEntry(t, db), before-old)
		n, err = r.purgeOld(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

// countAll is the number of records in any state.
func countAll(t testing.TB, db *database.DB) (n int) {
	t.Helper()
	require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM t_event_record").Scan(&n).Error)
	return n
}

// everyEntry must not run beside a relay.
func everyEntry(t testing.TB, db *database.DB) []Entry {
	t.Helper()
	all, _ := searchAll(t, db, Filter{Limit: 1000})
	return all
}

// TestPurgeLooksAgainAtWhatItDeletes: a record that is put back to WAIT between the look and the deletion stays.
func TestPurgeLooksAgainAtWhatItDeletes(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		write(t, db, "A", 4)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS'").Error)
		age(t, db, "created_at", time.Hour, "1 = 1")
		age(t, db, "sent_at", time.Hour, "1 = 1")
		s := newStore(db)
		rows, err := s.oldest(t.Context(), time.Minute, 0)
		require.NoError(t, err)
		require.Len(t, rows, 4)
		var found []int64
		for _, r := range rows {
			require.True(t, r.old)
			found = append(found, r.id)
		}
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'WAIT' WHERE biz_no = 'A1'").Error)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL' WHERE biz_no = 'A2'").Error)
		n, err := s.purge(t.Context(), time.Minute, found)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
		require.Equal(t, 1, countStatus(t, db, StatusWait))
		require.Equal(t, 1, countStatus(t, db, StatusFail))
	})
}

// TestPurgeStopsAtYoungRecords: a table full of records that are kept is not read to its end.
func TestPurgeStopsAtYoungRecords(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		var mu sync.Mutex
		looks := 0
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if strings.Contains(query, "WHERE id >") {
				mu.Lock()
				looks++
				mu.Unlock()
			}
			return nil
		}}})
		fill(t, db)
		looks = 0
		cfg := testConfig(t, db, newFakeSink(nil))
		cfg.Retention = time.Hour
		n, err := newTestRelay(t, cfg).purgeOld(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, 1, looks)
	})
}

// TestRetentionBesideWritersAndRelays: two relays send and purge at once beside writers. No error of a lock reaches
// anybody, nothing is lost, and in the end only what must stay is there (R34).
func TestRetentionBesideWritersAndRelays(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		const writers, each = 4, 100
		db := e.db(t)
		write(t, db, "dead", 30)
		bury(t, db)
		age(t, db, "created_at", 24*time.Hour, "1 = 1")
		sink := newFakeSink(nil)
		log := &logRecorder{}
		for i := range 2 {
			cfg := testConfig(t, e.db(t), sink)
			cfg.Instance, cfg.Logger = fmt.Sprint("relay", i), log.logger()
			cfg.Retention, cfg.RetentionInterval = time.Millisecond, 2*time.Millisecond
			start(t, newTestRelay(t, cfg))
		}
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				w, err := NewWriter(WriterConfig{DB: db, Sink: "main", Destination: "T"})
				if err != nil {
					t.Error(err)
					return
				}
				for n := range each {
					if _, err := w.PublishInTx(context.Background(), event(fmt.Sprintf("W%d-%d", i, n)), insertLocal); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		// One statement: a search goes from state to state, and misses a record that changes its own meanwhile.
		eventually(t, func() bool { return countAll(t, db) == 30 }, "everything was sent and purged, but the dead letters")
		require.Equal(t, 30, countStatus(t, db, StatusFail))
		sent := sink.count()
		require.Len(t, sent, writers*each)
		for subject, n := range sent {
			require.Equal(t, 1, n, subject)
		}
		require.Empty(t, log.warnings())
	})
}
