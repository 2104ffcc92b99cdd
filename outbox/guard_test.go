package outbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// TestGuardDoesNotDependOnTheSizeOfTheTable: empty, with one record, with a few of every state, with many, and without
// statistics.
func TestGuardDoesNotDependOnTheSizeOfTheTable(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		require.NoError(t, CheckIndexes(t.Context(), db), "empty")
		write(t, db, "one", 1)
		require.NoError(t, CheckIndexes(t.Context(), db), "one record")
		write(t, db, "few", 7)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL' WHERE id % 3 = 0").Error)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS' WHERE id % 3 = 1").Error)
		require.NoError(t, CheckIndexes(t.Context(), db), "a few")
		fill(t, db)
		require.NoError(t, CheckIndexes(t.Context(), db), "many, no statistics")
		if db.Dialect == database.MySQL {
			require.NoError(t, db.Write.Exec("ANALYZE TABLE t_event_record").Error)
			require.NoError(t, CheckIndexes(t.Context(), db), "many, with statistics")
		}
	})
}

func dropIndex(t testing.TB, db *database.DB, name string) {
	t.Helper()
	query := "DROP INDEX " + name
	if db.Dialect == database.MySQL {
		query += " ON t_event_record"
	}
	require.NoError(t, db.Write.Exec(query).Error)
}

func TestGuardNamesTheIndexAndTheRemedy(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		for index, other := range map[string]string{
			"idx_status_next_retry": "status, next_retry_time",
			"idx_key_version":       "partition_key, sink",
			"uk_biz_event_sink":     "event_type, sink, biz_no",
			"uk_msg_sink":           "sink, msg_id",
		} {
			dropIndex(t, db, index)
			refused := func() {
				t.Helper()
				err := CheckIndexes(t.Context(), db)
				require.ErrorIs(t, err, ErrIndex, "%s (%s)", index, other)
				require.ErrorContains(t, err, index)
				require.ErrorContains(t, err, "halfbox migrate up")
				require.ErrorContains(t, err, indexDDL(index))
				for line := range strings.SplitSeq(err.Error(), "\n") {
					require.Contains(t, line, index, "no other index is blamed")
				}
			}
			refused()
			require.NoError(t, db.Write.Exec(fmt.Sprintf("CREATE INDEX %s ON t_event_record (%s)", index, other)).Error)
			refused()
			if db.Dialect == database.MySQL {
				dropIndex(t, db, index)
				require.NoError(t, db.Write.Exec(indexDDL(index)).Error)
				require.NoError(t, db.Write.Exec("ALTER TABLE t_event_record ALTER INDEX "+index+" INVISIBLE").Error)
				refused()
			}
			dropIndex(t, db, index)
			require.NoError(t, db.Write.Exec(indexDDL(index)).Error, "the remedy can be run as it stands")
			require.NoError(t, CheckIndexes(t.Context(), db))
		}
	})
}

// TestRelayRefusesToWorkWithoutAnIndex, and begins when it is there.
func TestRelayRefusesToWorkWithoutAnIndex(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		write(t, db, "A", 3)
		dropIndex(t, db, "idx_key_version") // a claim alone would not miss it
		sink := newFakeSink(nil)
		r := newTestRelay(t, testConfig(t, e.db(t), sink))
		require.ErrorIs(t, r.Ready(), ErrNotChecked)
		start(t, r)
		eventually(t, func() bool { return strings.Contains(fmt.Sprint(r.Ready()), "idx_key_version") }, "refused")
		require.ErrorIs(t, r.Ready(), ErrIndex)
		require.Equal(t, 3, countStatus(t, db, StatusWait))
		require.Empty(t, sink.all())
		require.NoError(t, db.Write.Exec(indexDDL("idx_key_version")).Error)
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 3 }, "sent")
		require.NoError(t, r.Ready())
	})
}
