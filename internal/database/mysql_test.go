package database_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

func TestSessionOfMySQL(t *testing.T) {
	t.Parallel()
	db := newMySQL(t, database.Options{LockWait: 3 * time.Second})
	for variable, want := range map[string]string{
		"time_zone": "+00:00", "transaction_isolation": "READ-COMMITTED", "wait_timeout": "30", "innodb_lock_wait_timeout": "3", "autocommit": "1",
	} {
		var got string
		require.NoError(t, db.Read.Raw("SELECT @@session."+variable).Scan(&got).Error)
		require.Equal(t, want, got, variable)
	}
	mustExec(t, db, "INSERT INTO t (id, note) VALUES (1, 'same')")
	res := db.Write.Exec("UPDATE t SET note = 'same' WHERE id = 1")
	require.NoError(t, res.Error)
	require.EqualValues(t, 1, res.RowsAffected, "a matched row counts, changed or not")
}

// Two transactions that lock two rows in opposite order: InTx repeats the one that MySQL undoes.
func TestDeadlockOfMySQLIsRepeated(t *testing.T) {
	t.Parallel()
	db := newMySQL(t, database.Options{})
	mustExec(t, db, "INSERT INTO t (id, note) VALUES (1, ''), (2, '')")
	var both sync.WaitGroup // until each holds its first row
	both.Add(2)
	var runs atomic.Int64
	var wg sync.WaitGroup
	for _, order := range [][]int{{1, 2}, {2, 1}} {
		first := true
		wg.Go(func() {
			err := db.InTx(t.Context(), func(tx *gorm.DB) error {
				runs.Add(1)
				if err := tx.Exec("UPDATE t SET note = concat(note, 'x') WHERE id = ?", order[0]).Error; err != nil {
					return err
				}
				if first {
					first = false
					both.Done()
					both.Wait()
				}
				return tx.Exec("UPDATE t SET note = concat(note, 'x') WHERE id = ?", order[1]).Error
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.GreaterOrEqual(t, runs.Load(), int64(3), "there was a deadlock")
	var notes []string
	require.NoError(t, db.Read.Raw("SELECT note FROM t ORDER BY id").Scan(&notes).Error)
	require.Equal(t, []string{"xx", "xx"}, notes, "each transaction counts once")
}

func TestLockWaitOfMySQL(t *testing.T) {
	t.Parallel()
	db := newMySQL(t, database.Options{LockWait: time.Second})
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
		require.NoError(t, insert(tx, 1))
		err := insert(db.Write, 1)
		require.Error(t, err)
		require.True(t, database.IsLockConflict(err), "%v", err)
		return nil
	}))
}

func TestContextEndedInsideOnMySQL(t *testing.T) {
	t.Parallel()
	db := newMySQL(t, database.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	err := db.InTx(ctx, func(tx *gorm.DB) error {
		defer cancel()
		return insert(tx, 1)
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, ids(t, db))
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
}

// The connection dies before COMMIT reaches the server.
func TestCommitOnAKilledConnectionOfMySQL(t *testing.T) {
	t.Parallel()
	db := newMySQL(t, database.Options{})
	err := db.InTx(t.Context(), func(tx *gorm.DB) error {
		require.NoError(t, insert(tx, 1))
		var id int
		require.NoError(t, tx.Raw("SELECT CONNECTION_ID()").Scan(&id).Error)
		return db.Write.Exec("KILL ?", id).Error
	})
	require.Error(t, err)
	require.True(t, errors.Is(err, halfbox.ErrUnknown) || errors.Is(err, halfbox.ErrRolledBack))
	require.Empty(t, ids(t, db))
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
}

// MySQL has rolled back the transaction that lost a deadlock: what its function does afterwards must not be committed
// alone, whether it looks at errors or not.
func TestDeadlockOfMySQLThatNobodyLooksAt(t *testing.T) {
	t.Parallel()
	db := newMySQL(t, database.Options{LockWait: 10 * time.Second})
	require.NoError(t, insert(db.Write, 1))
	require.NoError(t, insert(db.Write, 2))
	var both, ended sync.WaitGroup
	both.Add(2)
	for i := range 2 {
		ended.Go(func() {
			met := false
			err := db.InTx(t.Context(), func(tx *gorm.DB) error {
				add := func(id int) {
					_ = tx.Exec("UPDATE t SET note = CONCAT(note, ?) WHERE id = ?", string(rune('a'+i)), id)
				}
				add(1 + i)
				if !met {
					met = true
					both.Done()
					both.Wait()
				}
				add(2 - i)
				_ = insert(tx, 10+i)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	ended.Wait()
	var notes []string
	require.NoError(t, db.Read.Raw("SELECT note FROM t WHERE id < 10").Scan(&notes).Error)
	for _, note := range notes {
		require.ElementsMatch(t, []string{"x", "a", "b"}, strings.Split(note, ""), "both transactions committed as a whole")
	}
	require.Equal(t, []int{1, 2, 10, 11}, ids(t, db))
}
