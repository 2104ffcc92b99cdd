package database_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

func TestInTxCommits(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
	require.Equal(t, []int{1}, ids(t, db))
	requireUsable(t, db)
}

func TestInTxTellsOfCommit(t *testing.T) {
	t.Parallel()
	lost := errors.New("answer lost")
	var lose error
	db := newDB(t, database.Options{Hooks: database.Hooks{After: func(op database.Op, _ string) error {
		if op == database.OpCommit {
			return lose
		}
		return nil
	}}})
	told := 0
	fn := func(id int, err error) func(tx *gorm.DB) error {
		return func(tx *gorm.DB) error {
			database.OnCommit(tx, func() { told++ })
			database.OnCommit(tx.WithContext(t.Context()), func() { told++ })
			require.NoError(t, insert(tx, id))
			return err
		}
	}
	require.NoError(t, db.InTx(t.Context(), fn(1, nil)))
	require.Equal(t, 2, told)
	require.ErrorIs(t, db.InTx(t.Context(), fn(2, errors.New("no"))), halfbox.ErrRolledBack)
	lose = lost
	require.ErrorIs(t, db.InTx(t.Context(), fn(3, nil)), halfbox.ErrUnknown)
	require.Equal(t, 2, told, "only a confirmed COMMIT counts")
	require.Panics(t, func() { database.OnCommit(db.Write, func() {}) })
}

func TestInTxErrorRollsBack(t *testing.T) {
	t.Parallel()
	db, cause := newDB(t, database.Options{}), errors.New("no stock left")
	err := db.InTx(t.Context(), func(tx *gorm.DB) error {
		require.NoError(t, insert(tx, 1))
		return cause
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, cause)
	require.Empty(t, ids(t, db))
	requireUsable(t, db)
}

func TestInTxPanicRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	require.PanicsWithValue(t, "out of cheese", func() {
		_ = db.InTx(t.Context(), func(tx *gorm.DB) error {
			require.NoError(t, insert(tx, 1))
			panic("out of cheese")
		})
	})
	require.Empty(t, ids(t, db))
	requireUsable(t, db)
}

func TestInTxContextEndedBefore(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := db.InTx(ctx, func(*gorm.DB) error { t.Error("fn must not run"); return nil })
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, context.Canceled)
	requireUsable(t, db)
}

func TestInTxContextEndedInside(t *testing.T) {
	t.Parallel()
	tests := map[string]func(tx *gorm.DB, cancel func()) error{
		"after the last statement": func(tx *gorm.DB, cancel func()) error { defer cancel(); return insert(tx, 1) },
		"before a statement": func(tx *gorm.DB, cancel func()) error {
			err := insert(tx, 1)
			cancel()
			return errors.Join(err, insert(tx, 2))
		},
		"and fn looks away": func(tx *gorm.DB, cancel func()) error {
			_ = insert(tx, 1)
			cancel()
			_ = insert(tx, 2)
			return nil
		},
	}
	for name, fn := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDB(t, database.Options{})
			ctx, cancel := context.WithCancel(t.Context())
			err := db.InTx(ctx, func(tx *gorm.DB) error { return fn(tx, cancel) })
			require.ErrorIs(t, err, halfbox.ErrRolledBack)
			require.ErrorIs(t, err, context.Canceled)
			require.Empty(t, ids(t, db))
			requireUsable(t, db)
		})
	}
}

// A caller that gives up while COMMIT is on its way must not make its outcome unknown.
func TestInTxContextEndedAtCommit(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(h *database.Hooks, hook func(database.Op, string) error){
		"before": func(h *database.Hooks, hook func(database.Op, string) error) { h.Before = hook },
		"after":  func(h *database.Hooks, hook func(database.Op, string) error) { h.After = hook },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			var hooks database.Hooks
			at(&hooks, func(op database.Op, _ string) error {
				if op == database.OpCommit {
					cancel()
					<-ctx.Done()
				}
				return nil
			})
			db := newDB(t, database.Options{Hooks: hooks})
			require.NoError(t, db.InTx(ctx, func(tx *gorm.DB) error { return insert(tx, 1) }))
			require.ErrorIs(t, ctx.Err(), context.Canceled, "COMMIT was reached")
			require.Equal(t, []int{1}, ids(t, db))
			requireUsable(t, db)
		})
	}
}

func TestInTxDeadlineWhileWaitingForTheLock(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	holder, db := open(t, path, database.Options{}), open(t, path, database.Options{LockWait: 10 * wait})
	release := holdLock(t, holder)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := db.InTx(ctx, func(tx *gorm.DB) error { return insert(tx, 1) })
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), wait, "the lock wait must not outlast the caller's deadline")
	release()
	requireUsable(t, db)
}

// A function that ends the transaction itself must not make InTx say what is not true.
func TestInTxIsEndedByInTxAlone(t *testing.T) {
	t.Parallel()
	later := errors.New("changed my mind")
	tests := map[string]func(tx *gorm.DB) error{
		"commit":                    func(tx *gorm.DB) error { tx.Commit(); return nil },
		"commit, then an error":     func(tx *gorm.DB) error { tx.Commit(); return later },
		"commit, its error":         func(tx *gorm.DB) error { return tx.Commit().Error },
		"rollback":                  func(tx *gorm.DB) error { tx.Rollback(); return nil },
		"rollback, then an error":   func(tx *gorm.DB) error { tx.Rollback(); return later },
		"COMMIT as a statement":     func(tx *gorm.DB) error { return tx.Exec("COMMIT").Error },
		"ROLLBACK as a statement":   func(tx *gorm.DB) error { return tx.Exec("ROLLBACK").Error },
		"commit, then more of it":   func(tx *gorm.DB) error { tx.Commit(); return insert(tx, 2) },
		"ROLLBACK; as a statement":  func(tx *gorm.DB) error { return tx.Exec(" rollback;").Error },
		"BEGIN as a statement":      func(tx *gorm.DB) error { tx.Exec("BEGIN"); return insert(tx, 2) },
		"START as a statement":      func(tx *gorm.DB) error { tx.Exec("START TRANSACTION"); return insert(tx, 2) },
		"rollback, then more of it": func(tx *gorm.DB) error { tx.Rollback(); return insert(tx, 2) },
	}
	for name, fn := range tests {
		for engine, open := range map[string]func(testing.TB, database.Options) *database.DB{"sqlite": newDB, "mysql": newMySQL} {
			t.Run(name+", "+engine, func(t *testing.T) {
				t.Parallel()
				db := open(t, database.Options{})
				err := db.InTx(t.Context(), func(tx *gorm.DB) error {
					require.NoError(t, insert(tx, 1))
					return fn(tx)
				})
				require.ErrorIs(t, err, halfbox.ErrRolledBack, "a misused transaction is never a plain success")
				require.Empty(t, ids(t, db))
				if engine == "sqlite" {
					requireUsable(t, db)
				}
			})
		}
	}
}

// What only looks like an end is let through.
func TestInTxSavepoint(t *testing.T) {
	t.Parallel()
	for _, open := range []func(testing.TB, database.Options) *database.DB{newDB, newMySQL} {
		db := open(t, database.Options{})
		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			return errors.Join(insert(tx, 1), tx.SavePoint("s").Error, insert(tx, 2), tx.RollbackTo("s").Error, insert(tx, 3))
		}))
		require.Equal(t, []int{1, 3}, ids(t, db))
	}
}

// A nested gorm transaction joins the one it is in.
func TestInTxNestedTransaction(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
		return tx.Transaction(func(tx *gorm.DB) error { return insert(tx, 1) })
	}))
	require.Equal(t, []int{1}, ids(t, db))
}

// holdLock opens a transaction that holds the file's write lock until the returned function is called.
func holdLock(t testing.TB, db *database.DB) (release func()) {
	t.Helper()
	held, done, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- db.InTx(context.Background(), func(*gorm.DB) error {
			close(held)
			<-done
			return nil
		})
	}()
	<-held
	return func() {
		t.Helper()
		close(done)
		require.NoError(t, <-ended)
	}
}
