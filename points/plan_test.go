package points_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/points"
)

// Every query of the ledger finds its rows through an index, never by a scan or a sort.
func TestEveryQueryUsesAnIndex(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	var mu sync.Mutex
	queries := map[string]bool{}
	r := newRig(t, e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(query, "t_points_") && !strings.HasPrefix(query, "INSERT") {
			queries[query] = true
		}
		return nil
	}}}), points.Hooks{})
	f := newFact(7, 500)
	g := f
	g.msgID = "another"
	r.handle(points.Credited, f.message(t))
	r.handle(points.DuplicateMessage, f.message(t))
	r.handle(points.DuplicateOrder, g.message(t))
	r.handle(points.Reversed, f.cancelled().message(t))
	r.handle(points.DuplicateOrder, f.cancelled().message(t))
	r.account(7)

	mu.Lock()
	seen := queries
	queries = map[string]bool{}
	mu.Unlock()
	require.Len(t, seen, 6, "%v", seen)
	for query := range seen {
		args := make([]any, strings.Count(query, "?"))
		for i := range args {
			args[i] = 1
		}
		var plan []struct{ Detail string }
		require.NoError(t, e.db(t).Read.Raw("EXPLAIN QUERY PLAN "+query, args...).Scan(&plan).Error)
		require.Len(t, plan, 1, "%s: %v", query, plan)
		require.Regexp(t, `^SEARCH t_points_\w+ USING (INDEX|INTEGER PRIMARY KEY)`, plan[0].Detail, query)
	}
}
