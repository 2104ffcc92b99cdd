package database_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

func TestPragmasInForceOnEveryConnection(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{LockWait: 1234 * time.Millisecond, MaxOpen: 3})
	reads, err := db.Read.DB()
	require.NoError(t, err)
	for _, tt := range []struct {
		pool                   *sql.DB
		connections, queryOnly int
	}{{db.SQL(), 1, 0}, {reads, 3, 1}} {
		require.Equal(t, tt.connections, tt.pool.Stats().MaxOpenConnections)
		for range tt.connections { // held until the end, so that every one is a connection of its own
			conn, err := tt.pool.Conn(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			for pragma, want := range map[string]any{
				"journal_mode": "wal", "synchronous": int64(2), "busy_timeout": int64(1234), "query_only": int64(tt.queryOnly),
			} {
				var got any
				require.NoError(t, conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got))
				require.Equal(t, want, got, pragma)
			}
		}
	}
}

// A connection that replaces a broken one has the same settings.
func TestPragmasAfterReconnect(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{Hooks: database.Hooks{After: failing(database.OpCommit, 1, errors.New("lost"))}})
	require.Error(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
	var got int
	require.NoError(t, db.Write.Raw("PRAGMA synchronous").Scan(&got).Error)
	require.Equal(t, 2, got)
}

func TestReadersCannotWrite(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	require.ErrorContains(t, insert(db.Read, 1), "readonly")
	require.Empty(t, ids(t, db))
}

// Transactions take the write lock at BEGIN: no reader turned writer can fail on a stale snapshot.
func TestTransactionsBeginImmediate(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	db, other := open(t, path, database.Options{}), open(t, path, database.Options{LockWait: 10 * time.Millisecond})
	require.NoError(t, db.InTx(t.Context(), func(*gorm.DB) error {
		require.True(t, database.IsLockConflict(insert(other.Write, 1)), "an empty transaction holds the lock")
		return nil
	}))
}

func TestReadersReadWhileTheWriterWrites(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
		require.NoError(t, insert(tx, 2))
		require.NoError(t, db.Ping(t.Context()), "readiness does not queue behind the writer")
		require.Equal(t, []int{1}, ids(t, db), "readers see what is committed")
		return nil
	}))
	require.Equal(t, []int{1, 2}, ids(t, db))
}

func TestWriterAndReadersAtOnce(t *testing.T) {
	t.Parallel()
	const writes = 200
	db := newDB(t, database.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for last := 0; ctx.Err() == nil; {
				var n int
				if err := db.Read.Raw("SELECT COUNT(*) FROM t").Scan(&n).Error; err != nil || n < last || n%2 != 0 {
					t.Errorf("read %d rows after %d: %v", n, last, err)
					return
				}
				last = n
			}
		})
	}
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := range writes / 4 {
				id := 2 * (w*writes + i)
				if err := db.InTx(t.Context(), func(tx *gorm.DB) error { return errors.Join(insert(tx, id), insert(tx, id+1)) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	cancel()
	readers.Wait()
	require.Len(t, ids(t, db), 2*writes)
}

// Several processes that start on a folder without files all want to make them.
func TestOpenANewFileAtOnce(t *testing.T) {
	t.Parallel()
	for range 10 {
		path := filepath.Join(t.TempDir(), "new.db")
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				db, err := database.OpenSQLite(path, database.Options{LockWait: wait})
				if err != nil {
					t.Error(err)
					return
				}
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

func TestOpenInAMissingFolder(t *testing.T) {
	t.Parallel()
	_, err := database.OpenSQLite(filepath.Join(t.TempDir(), "missing", "x.db"), database.Options{})
	require.ErrorContains(t, err, "missing")
}

// A path is a path: nothing in it is read as an option or cut off.
func TestOpenOddPaths(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"with space.db", "q?mode=memory.db", "p%41.db", "h#x.db", "ünï.db"} {
		path := filepath.Join(t.TempDir(), name)
		db := open(t, path, database.Options{})
		mustExec(t, db, "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT NOT NULL)")
		require.FileExists(t, path)
		require.Empty(t, ids(t, db))
	}
}

func TestClosedDatabase(t *testing.T) {
	t.Parallel()
	db, err := database.OpenSQLite(newFile(t), database.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.Error(t, db.Ping(t.Context()))
	require.Error(t, db.InTx(t.Context(), func(*gorm.DB) error { return nil }))
	require.NoError(t, db.Close(), "closing twice is fine")
}
