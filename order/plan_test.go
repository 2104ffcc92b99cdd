package order_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/plantest"
	"github.com/halfbox/halfbox/order"
)

// Every query of the domain finds its rows through a unique key, never by a scan.
func TestEveryQueryUsesAUniqueKey(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		rec := plantest.NewRecorder("t_order")
		db := e.open(t, database.Options{Hooks: rec.Hooks()})
		s, _ := newService(t, db)
		o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100, IdempotencyKey: "k"})
		require.NoError(t, err)
		_, err = s.Get(t.Context(), o.OrderNo)
		require.NoError(t, err)
		_, err = s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
		require.NoError(t, err)
		_, err = order.NewCreatedResolver(db).Find(t.Context(), half(halfbox.Attempt{MsgID: "x"}, o.OrderNo))
		require.NoError(t, err)

		seen := rec.Statements()
		require.Len(t, seen, 5)
		for _, query := range seen {
			plantest.RequireIndex(t, e.db(t), query, "uk_")
		}
	})
}
