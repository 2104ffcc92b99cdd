package database_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

var (
	errDeadlock = &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock; try restarting transaction"}
	errLockWait = &mysql.MySQLError{Number: 1205, Message: "Lock wait timeout exceeded; try restarting transaction"}
)

func TestLockConflictRepeatsTheWholeTransaction(t *testing.T) {
	t.Parallel()
	for _, conflict := range []error{errDeadlock, errLockWait} {
		for kind, hooks := range map[string]database.Hooks{
			"begin":        {Before: failing(database.OpBegin, 2, conflict)},
			"statement":    {Before: failing(database.OpExec, 2, conflict)},
			"its answer":   {After: failing(database.OpExec, 2, conflict)},
			"commit":       {Before: failing(database.OpCommit, 2, conflict)},
			"begin answer": {After: failing(database.OpBegin, 2, conflict)},
		} {
			t.Run(fmt.Sprintf("%.12s at %s", conflict.Error(), kind), func(t *testing.T) {
				t.Parallel()
				db := newDB(t, database.Options{Hooks: hooks})
				require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
					if err := insert(tx, 1); err != nil {
						return err
					}
					return insert(tx, 2)
				}))
				require.Equal(t, []int{1, 2}, ids(t, db))
				requireUsable(t, db)
			})
		}
	}
}

// A function that takes no notice of a lock conflict must not commit what came after it.
func TestLockConflictIsNoticedByInTx(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]func(tx *gorm.DB) error{
		"no error":      func(tx *gorm.DB) error { _, _ = insert(tx, 1), insert(tx, 2); return nil },
		"another error": func(tx *gorm.DB) error { _ = insert(tx, 1); return insert(tx, 2) },
		"hidden": func(tx *gorm.DB) error {
			if insert(tx, 1) != nil {
				return errors.New("no stock left")
			}
			return insert(tx, 2)
		},
		"a row": func(tx *gorm.DB) error {
			var id int
			_ = tx.Raw("INSERT INTO t (id, note) VALUES (1, 'x') RETURNING id").Row().Scan(&id)
			_ = tx.Raw("INSERT INTO t (id, note) VALUES (2, 'x') RETURNING id").Row().Scan(&id)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var met atomic.Bool
			db := newDB(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
				if strings.HasPrefix(query, "INSERT") && met.CompareAndSwap(false, true) {
					return errDeadlock
				}
				return nil
			}}})
			require.NoError(t, db.InTx(t.Context(), fn))
			require.Equal(t, []int{1, 2}, ids(t, db), "all of it, from an empty transaction")
			requireUsable(t, db)
		})
	}
}

func TestLockConflictGivesUpAfterFiveTries(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	runs := 0
	err := db.InTx(t.Context(), func(tx *gorm.DB) error {
		runs++
		require.NoError(t, insert(tx, 1), "every try begins with an empty transaction")
		return fmt.Errorf("insert: %w", errDeadlock)
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, errDeadlock)
	require.Equal(t, 5, runs)
	require.Empty(t, ids(t, db))
	requireUsable(t, db)
}

func TestLockConflictThatEndsOnTheLastTry(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{Hooks: database.Hooks{Before: failing(database.OpExec, 4, errDeadlock)}})
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
	require.Equal(t, []int{1}, ids(t, db))
}

func TestLockConflictStopsWithTheContext(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	err := db.InTx(ctx, func(*gorm.DB) error {
		runs++
		cancel()
		return errDeadlock
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.Equal(t, 1, runs, "a caller that is gone is not tried for")
	requireUsable(t, db)
}

func TestOtherErrorsAreNotRepeated(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	runs := 0
	err := db.InTx(t.Context(), func(*gorm.DB) error { runs++; return errors.New("no") })
	require.Error(t, err)
	require.Equal(t, 1, runs)
}

// The file is busy because another handle, as another process would, holds its write lock.
func TestBusyFileIsALockConflict(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	holder, db := open(t, path, database.Options{}), open(t, path, database.Options{LockWait: 20 * time.Millisecond})
	release := holdLock(t, holder)
	err := insert(db.Write, 1)
	require.Error(t, err)
	require.True(t, database.IsLockConflict(err), "%v", err)
	require.False(t, database.IsDuplicate(err))
	err = db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) })
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.True(t, database.IsLockConflict(err))
	release()
	requireUsable(t, db)
}

// A transaction that meets a busy file succeeds once the file is free again.
func TestBusyFileIsWaitedFor(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	release := holdLock(t, open(t, path, database.Options{}))
	begins := 0
	db := open(t, path, database.Options{LockWait: 10 * time.Millisecond, Hooks: database.Hooks{Before: func(op database.Op, _ string) error {
		if op == database.OpBegin {
			if begins++; begins == 2 {
				release()
			}
		}
		return nil
	}}})
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
	require.Equal(t, 2, begins)
	require.Equal(t, []int{1}, ids(t, db))
}

func TestIsLockConflict(t *testing.T) {
	t.Parallel()
	require.True(t, database.IsLockConflict(errDeadlock))
	require.True(t, database.IsLockConflict(fmt.Errorf("insert: %w", halfbox.RolledBack(errLockWait))))
	for _, err := range []error{nil, errors.New("deadlock"), &mysql.MySQLError{Number: 1062}, context.DeadlineExceeded} {
		require.False(t, database.IsLockConflict(err), "%v", err)
	}
}
