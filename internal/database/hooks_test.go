package database_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

func TestHooksSeeEveryStatement(t *testing.T) {
	t.Parallel()
	var before, after recorder
	db := newDB(t, database.Options{Hooks: database.Hooks{Before: before.hook, After: after.hook}})
	before.take() // gorm asks for the version when it opens
	after.take()
	read := func(tx *gorm.DB) error {
		var n int
		return tx.Raw("SELECT COUNT(*) FROM t").Scan(&n).Error
	}
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return errors.Join(insert(tx, 1), read(tx)) }))
	require.Error(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return errors.Join(insert(tx, 2), errors.New("no")) }))
	require.NoError(t, read(db.Read), "the readers' pool too")
	want := []string{
		"begin BEGIN", "exec INSERT", "query SELECT", "commit COMMIT",
		"begin BEGIN", "exec INSERT", "rollback ROLLBA", "query SELECT",
	}
	require.Equal(t, want, before.take())
	require.Equal(t, want, after.take())
}

func TestHookAfterIsNotCalledForAFailure(t *testing.T) {
	t.Parallel()
	var after recorder
	db := newDB(t, database.Options{Hooks: database.Hooks{After: after.hook}})
	after.take()
	require.Error(t, db.Write.Exec("INSERT INTO missing VALUES (1)").Error)
	require.Empty(t, after.take())
}

func TestHookBeforeTakesTheStatementsPlace(t *testing.T) {
	t.Parallel()
	injected := errors.New("injected")
	for _, kind := range []database.Op{database.OpBegin, database.OpExec, database.OpQuery} {
		var armed atomic.Bool
		fail := failing(kind, 1, injected)
		db := newDB(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
			if armed.Load() {
				return fail(op, query)
			}
			return nil
		}}})
		armed.Store(true)
		err := db.InTx(t.Context(), func(tx *gorm.DB) error {
			var n int
			return errors.Join(insert(tx, 1), tx.Raw("SELECT COUNT(*) FROM t").Scan(&n).Error)
		})
		require.ErrorIs(t, err, injected, "%s", kind)
		require.Empty(t, ids(t, db), "%s", kind)
		requireUsable(t, db)
	}
}
