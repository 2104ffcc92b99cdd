package database_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// testLine has several versions, so that two processes can meet at each of them.
func testLine(versions int) database.Line {
	files := fstest.MapFS{}
	for v := 1; v <= versions; v++ {
		for _, dialect := range []database.Dialect{database.SQLite, database.MySQL} {
			files[fmt.Sprintf("migrations/%s/%04d_step.sql", dialect, v)] = &fstest.MapFile{Data: []byte(fmt.Sprintf(
				"-- +goose Up\nCREATE TABLE m%d (id INTEGER PRIMARY KEY);\nINSERT INTO m%d (id) VALUES (1);\n-- +goose Down\nDROP TABLE m%d;\n", v, v, v))}
		}
	}
	return database.Line{Name: "test", Files: files}
}

const testVersions = 4

func openAndMigrate(path string) error {
	db, err := database.OpenSQLite(path, database.Options{LockWait: wait})
	if err != nil {
		return err
	}
	return errors.Join(db.Migrate(context.Background(), testLine(testVersions)), db.Close())
}

func requireMigrated(t testing.TB, db *database.DB) {
	t.Helper()
	for v := 1; v <= testVersions; v++ {
		var rows int
		require.NoError(t, db.Read.Raw(fmt.Sprintf("SELECT COUNT(*) FROM m%d", v)).Scan(&rows).Error)
		require.Equal(t, 1, rows, "version %d ran once", v)
	}
	var applied int
	require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM goose_test WHERE version_id > 0 AND is_applied").Scan(&applied).Error)
	require.Equal(t, testVersions, applied)
}

func migrateTwice(t *testing.T, db *database.DB) {
	require.NoError(t, db.Migrate(t.Context(), testLine(2)))
	require.NoError(t, db.Migrate(t.Context(), testLine(testVersions)), "newer versions are added")
	requireMigrated(t, db)
	require.NoError(t, db.Migrate(t.Context(), testLine(testVersions)))
	requireMigrated(t, db)
}

func TestMigrateTwice(t *testing.T) {
	t.Parallel()
	migrateTwice(t, newDB(t, database.Options{}))
}

func TestMigrateTwiceOnMySQL(t *testing.T) {
	t.Parallel()
	migrateTwice(t, newMySQL(t, database.Options{}))
}

// Lines of two packages in one database do not see each other.
func TestMigrateTwoLines(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	require.NoError(t, db.Migrate(t.Context(), testLine(1)))
	other := testLine(0)
	other.Name = "other"
	other.Files = fstest.MapFS{"migrations/sqlite/0001_x.sql": &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE o1 (id INTEGER);\n")}}
	require.NoError(t, db.Migrate(t.Context(), other))
	require.NoError(t, db.Read.Exec("SELECT id FROM o1").Error)
}

func TestMigrateBrokenVersion(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	line := database.Line{Name: "broken", Files: fstest.MapFS{"migrations/sqlite/0001_x.sql": &fstest.MapFile{
		Data: []byte("-- +goose Up\nCREATE TABLE half (id INTEGER);\nCREATE NONSENSE;\n"),
	}}}
	require.ErrorContains(t, db.Migrate(t.Context(), line), "migrate broken")
	require.Error(t, db.Read.Exec("SELECT id FROM half").Error, "a broken version leaves nothing behind")
	require.Error(t, db.Migrate(t.Context(), database.Line{Name: "none", Files: fstest.MapFS{}}))
}

func TestMigrateFromManyGoroutines(t *testing.T) {
	t.Parallel()
	for round := range 2 {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("r%d.db", round))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := openAndMigrate(path); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		requireMigrated(t, open(t, path, database.Options{}))
	}
}

// Another process is faster at every version.
func TestMigrateBehindAnother(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	other := open(t, path, database.Options{})
	done := 0
	db := open(t, path, database.Options{Hooks: database.Hooks{Before: func(op database.Op, _ string) error {
		if op != database.OpBegin || done == testVersions {
			return nil
		}
		done++
		return other.Migrate(t.Context(), testLine(done))
	}}})
	require.NoError(t, db.Migrate(t.Context(), testLine(testVersions)))
	requireMigrated(t, db)
}

func TestMigrateFromTwoProcesses(t *testing.T) {
	t.Parallel()
	for round := range 2 {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("p%d.db", round))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
				cmd.Env = append(os.Environ(), migrateFile+"="+path)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		wg.Wait()
		requireMigrated(t, open(t, path, database.Options{}))
	}
}
