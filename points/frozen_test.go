package points_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/points"
)

func TestFrozenAccount(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		r.handle(points.Credited, newFact(7, 1000).message(t))
		require.NoError(t, r.db.Write.Exec("UPDATE t_points_account SET status = 'FROZEN' WHERE user_id = 7").Error)
		f := newFact(7, 500)
		r.handle(points.Rejected, f.message(t))
		r.requireBalance(7, 10, 2)
		rec := r.account(7).Records[0]
		require.Equal(t, f.msgID, rec.MsgID)
		require.Equal(t, points.Earn, rec.Type)
		require.Zero(t, rec.Points)
		r.handle(points.DuplicateMessage, f.message(t)) // not tried again,
		require.NoError(t, r.db.Write.Exec("UPDATE t_points_account SET status = 'ACTIVE' WHERE user_id = 7").Error)
		r.handle(points.DuplicateMessage, f.message(t)) // and not made good later
		r.requireBalance(7, 10, 2)
		r.handle(points.Credited, newFact(7, 500).message(t))
		r.requireBalance(7, 15, 3)
		r.counted(map[points.Outcome]int{points.Credited: 2, points.Rejected: 1, points.DuplicateMessage: 2})
		require.Empty(t, r.deadLetters())
	})
}

func TestAccountOfAnUnknownUser(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		require.Equal(t, int64(404), r.account(404).UserID)
		require.Zero(t, r.account(404).Balance)
		require.Empty(t, r.account(404).Records)
	})
}

func TestAccountShowsTheNewestRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, newSQLite(t).db(t), points.Hooks{})
	for range points.MaxRecords + 3 {
		r.handle(points.Credited, newFact(7, 100).message(t))
	}
	acc := r.account(7)
	require.EqualValues(t, points.MaxRecords+3, acc.Balance)
	require.Len(t, acc.Records, points.MaxRecords)
	require.EqualValues(t, points.MaxRecords+3, acc.Records[0].BalanceAfter)
	require.Greater(t, acc.Records[0].ID, acc.Records[1].ID)
}
