package order_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

// Every query of the domain finds its rows through a unique key, never by a scan.
func TestEveryQueryUsesAUniqueKey(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	var mu sync.Mutex
	queries := map[string]bool{}
	db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == database.OpQuery && strings.Contains(query, "t_order") || strings.HasPrefix(query, "UPDATE t_order") {
			queries[query] = true
		}
		return nil
	}}})
	s, _ := newService(t, db)
	o, _, err := s.Create(t.Context(), order.CreateRequest{UserID: 7, AmountCents: 100, IdempotencyKey: "k"})
	require.NoError(t, err)
	_, err = s.Get(t.Context(), o.OrderNo)
	require.NoError(t, err)
	_, err = s.Cancel(t.Context(), order.CancelRequest{OrderNo: o.OrderNo})
	require.NoError(t, err)
	_, err = order.NewCreatedResolver(db).Find(t.Context(), half(halfbox.Attempt{MsgID: "x"}, o.OrderNo))
	require.NoError(t, err)

	mu.Lock()
	seen := queries
	queries = map[string]bool{}
	mu.Unlock()
	statements := 0
	for query := range seen {
		if strings.HasPrefix(query, "INSERT") {
			continue // INSERT ... RETURNING
		}
		statements++
		args := make([]any, strings.Count(query, "?"))
		for i := range args {
			args[i] = "x"
		}
		var plan []struct{ Detail string }
		require.NoError(t, e.db(t).Read.Raw("EXPLAIN QUERY PLAN "+query, args...).Scan(&plan).Error)
		require.NotEmpty(t, plan)
		for _, step := range plan {
			require.Contains(t, step.Detail, "USING INDEX uk_", query)
		}
	}
	require.Equal(t, 5, statements, "%v", seen)
}
