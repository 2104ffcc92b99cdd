package points_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/plantest"
	"github.com/halfbox/halfbox/points"
)

// Every query of the ledger finds its rows through an index, never by a scan or a sort.
func TestEveryQueryUsesAnIndex(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		rec := plantest.NewRecorder("t_points_")
		r := newRig(t, e.open(t, database.Options{Hooks: rec.Hooks()}), points.Hooks{})
		f := newFact(7, 500)
		g := f
		g.msgID = "another"
		r.handle(points.Credited, f.message(t))
		r.handle(points.DuplicateMessage, f.message(t))
		r.handle(points.DuplicateOrder, g.message(t))
		r.handle(points.Reversed, f.cancelled().message(t))
		r.handle(points.DuplicateOrder, f.cancelled().message(t))
		r.account(7)

		seen := rec.Statements()
		require.Len(t, seen, 6)
		for _, query := range seen {
			plantest.RequireIndex(t, e.db(t), query, "uk_", "idx_user_id", "PRIMARY")
		}
	})
}
