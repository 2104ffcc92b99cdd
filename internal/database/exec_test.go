package database_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

// What gorm's own Exec does for its callers, Exec does too: it runs in the transaction, hands on
// the driver's error, and has a slow statement logged without its values.
func TestExec(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.WarnLevel)
	db := newDB(t, database.Options{SlowQuery: time.Nanosecond, Logger: zap.New(core)})
	const query = "INSERT INTO t (id, note) VALUES (?, ?), (?, 'y')"
	undone := db.InTx(t.Context(), func(tx *gorm.DB) error {
		logs.TakeAll()
		rows, err := database.Exec(tx, query, 1, "secret", 2)
		require.NoError(t, err)
		require.EqualValues(t, 2, rows)
		slow := logs.FilterMessage("slow statement").All()
		require.Len(t, slow, 1)
		require.Equal(t, query, slow[0].ContextMap()["sql"])
		require.EqualValues(t, 2, slow[0].ContextMap()["rows"])
		_, err = database.Exec(tx, query, 1, "secret", 3)
		require.True(t, database.IsDuplicate(err), "%v", err)
		return err
	})
	require.Error(t, undone)
	require.Empty(t, ids(t, db))
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
		_, err := database.Exec(tx, query, 1, "x", 2)
		return err
	}))
	require.Equal(t, []int{1, 2}, ids(t, db))
}
