package database_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

func myErr(number uint16) error { return &mysql.MySQLError{Number: number, Message: "injected"} }

// lostAnswers are the errors of COMMIT that leave its outcome open.
func lostAnswers() []error {
	return []error{
		errors.New("connection lost"),
		io.EOF,
		io.ErrUnexpectedEOF,
		mysql.ErrInvalidConn,
		&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
		fmt.Errorf("read: %w", syscall.ETIMEDOUT),
		myErr(1053), // server shutdown in progress
		myErr(1180), // got error during COMMIT
		myErr(1317), // query execution was interrupted
	}
}

func TestCommitAnswerLost(t *testing.T) {
	t.Parallel()
	for _, lost := range lostAnswers() {
		t.Run(lost.Error(), func(t *testing.T) {
			t.Parallel()
			db := newDB(t, database.Options{Hooks: database.Hooks{After: failing(database.OpCommit, 1, lost)}})
			runs := 0
			err := db.InTx(t.Context(), func(tx *gorm.DB) error { runs++; return insert(tx, 1) })
			require.ErrorIs(t, err, halfbox.ErrUnknown)
			require.NotErrorIs(t, err, halfbox.ErrRolledBack)
			require.ErrorIs(t, err, lost)
			require.Equal(t, 1, runs, "a transaction of unknown outcome is never repeated")
			require.Equal(t, []int{1}, ids(t, db), "it did commit")
			requireUsable(t, db)
		})
	}
}

func TestCommitLost(t *testing.T) {
	t.Parallel()
	for _, lost := range lostAnswers() {
		t.Run(lost.Error(), func(t *testing.T) {
			t.Parallel()
			db := newDB(t, database.Options{Hooks: database.Hooks{Before: failing(database.OpCommit, 1, lost)}})
			err := db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) })
			require.ErrorIs(t, err, halfbox.ErrUnknown)
			requireUsable(t, db)
			require.Empty(t, ids(t, db), "it did not commit")
		})
	}
}

func TestCommitRefused(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{
		driver.ErrBadConn, // the driver's promise that nothing was sent
		myErr(1290),       // the server runs with --read-only
		myErr(1792),       // read-only transaction
		myErr(3101),       // a plugin told the server to roll back
	} {
		t.Run(refusal.Error(), func(t *testing.T) {
			t.Parallel()
			db := newDB(t, database.Options{Hooks: database.Hooks{Before: failing(database.OpCommit, 1, refusal)}})
			err := db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) })
			require.ErrorIs(t, err, halfbox.ErrRolledBack)
			require.NotErrorIs(t, err, halfbox.ErrUnknown)
			require.ErrorIs(t, err, refusal)
			requireUsable(t, db)
			require.Empty(t, ids(t, db))
		})
	}
}

func TestCommitRefusedForLocksAgainAndAgain(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{Hooks: database.Hooks{Before: failing(database.OpCommit, 5, errDeadlock)}})
	err := db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) })
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	requireUsable(t, db)
	require.Empty(t, ids(t, db))
}

// SQLite itself refuses this COMMIT and leaves the transaction open.
func TestCommitRefusedBySQLite(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	mustExec(t, db, "CREATE TABLE child (parent INTEGER NOT NULL REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)")
	mustExec(t, db, "PRAGMA foreign_keys = ON")
	err := db.InTx(t.Context(), func(tx *gorm.DB) error { return tx.Exec("INSERT INTO child (parent) VALUES (42)").Error })
	require.ErrorContains(t, err, "FOREIGN KEY")
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.NotErrorIs(t, err, halfbox.ErrUnknown)
	requireUsable(t, db)
	var n int
	require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM child").Scan(&n).Error)
	require.Zero(t, n)
}

// A real I/O kind of failure: the file has no room left for the transaction.
func TestCommitOfAFullFile(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	var pages int
	require.NoError(t, db.Write.Raw("PRAGMA page_count").Scan(&pages).Error)
	mustExec(t, db, fmt.Sprintf("PRAGMA max_page_count = %d", pages))
	err := db.InTx(t.Context(), func(tx *gorm.DB) error {
		return tx.Exec("INSERT INTO t (id, note) VALUES (1, hex(zeroblob(100000)))").Error
	})
	require.ErrorContains(t, err, "full")
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.Empty(t, ids(t, db))
	requireUsable(t, db)
}

// A rollback whose answer is lost must not leave the transaction open on a pooled connection.
func TestRollbackLost(t *testing.T) {
	t.Parallel()
	for _, lost := range append(lostAnswers(), driver.ErrBadConn) {
		t.Run(lost.Error(), func(t *testing.T) {
			t.Parallel()
			cause := errors.New("no stock left")
			db := newDB(t, database.Options{Hooks: database.Hooks{Before: failing(database.OpRollback, 1, lost)}})
			err := db.InTx(t.Context(), func(tx *gorm.DB) error {
				require.NoError(t, insert(tx, 1))
				return cause
			})
			require.ErrorIs(t, err, halfbox.ErrRolledBack)
			require.ErrorIs(t, err, cause)
			requireUsable(t, db)
			require.Empty(t, ids(t, db))
		})
	}
}
