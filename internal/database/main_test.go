package database_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// migrateFile makes the test binary a second process: it migrates this file and exits.
const migrateFile = "HALFBOX_TEST_MIGRATE_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(migrateFile); path != "" {
		if err := openAndMigrate(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// wait is the deadline for what must happen.
const wait = time.Minute

// open opens the SQLite file at path until the test ends.
func open(t testing.TB, path string, o database.Options) *database.DB {
	t.Helper()
	db, err := database.OpenSQLite(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// newFile returns the path of a new SQLite file with one table, t (id, note).
func newFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	mustExec(t, open(t, path, database.Options{}), "CREATE TABLE t (id INTEGER PRIMARY KEY, note TEXT NOT NULL)")
	return path
}

// newDB opens a new SQLite file with the table t.
func newDB(t testing.TB, o database.Options) *database.DB {
	t.Helper()
	return open(t, newFile(t), o)
}

func mustExec(t testing.TB, db *database.DB, query string, args ...any) {
	t.Helper()
	require.NoError(t, db.Write.Exec(query, args...).Error)
}

func insert(tx *gorm.DB, id int) error {
	return tx.Exec("INSERT INTO t (id, note) VALUES (?, 'x')", id).Error
}

// ids lists the committed rows of t.
func ids(t testing.TB, db *database.DB) []int {
	t.Helper()
	found := []int{}
	require.NoError(t, db.Read.Raw("SELECT id FROM t ORDER BY id").Scan(&found).Error)
	return found
}

// requireUsable asserts that nothing holds the file's write lock and that db's own pool works: both this handle and
// another one commit at once.
func requireUsable(t testing.TB, db *database.DB) {
	t.Helper()
	for i, h := range []*database.DB{db, open(t, fileOf(t, db), database.Options{LockWait: 50 * time.Millisecond})} {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		require.NoError(t, h.InTx(ctx, func(tx *gorm.DB) error { return insert(tx, 1_000_000+i) }))
		require.NoError(t, h.Write.Exec("DELETE FROM t WHERE id >= 1000000").Error)
		cancel()
	}
	require.Zero(t, db.SQL().Stats().InUse, "a connection did not come back")
}

func fileOf(t testing.TB, db *database.DB) string {
	t.Helper()
	var row struct{ File string }
	require.NoError(t, db.Read.Raw("PRAGMA database_list").Scan(&row).Error)
	return row.File
}

// recorder is a Before hook that remembers what it saw.
type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) hook(op database.Op, query string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, strings.TrimSpace(fmt.Sprintf("%s %.6s", op, query)))
	return nil
}

func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// failing returns a hook that answers the next n statements of a kind with err.
func failing(kind database.Op, n int, err error) func(database.Op, string) error {
	var mu sync.Mutex
	return func(op database.Op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if op != kind || n == 0 {
			return nil
		}
		n--
		return err
	}
}

// newMySQL opens a schema of its own.
func newMySQL(t testing.TB, o database.Options) *database.DB {
	t.Helper()
	db, err := database.OpenMySQL(enginetest.MySQL(t), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	mustExec(t, db, "CREATE TABLE t (id INTEGER PRIMARY KEY, note VARCHAR(64) NOT NULL)")
	return db
}
