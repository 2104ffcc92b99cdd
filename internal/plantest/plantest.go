// Package plantest records the statements that a test makes, and looks at how an engine would run them.
package plantest

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// Recorder keeps the statements that find rows of certain tables. It is safe for concurrent use.
type Recorder struct {
	tables string

	mu   sync.Mutex
	seen map[string]bool
}

// NewRecorder records what names a table that begins with the prefix.
func NewRecorder(tablePrefix string) *Recorder {
	return &Recorder{tables: tablePrefix, seen: map[string]bool{}}
}

// Hooks sees the statements of a database.
func (r *Recorder) Hooks() database.Hooks {
	return database.Hooks{Before: func(_ database.Op, query string) error {
		if strings.Contains(query, r.tables) && !strings.HasPrefix(query, "INSERT") {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.seen[query] = true
		}
		return nil
	}}
}

// Statements are those that were made, each once.
func (r *Recorder) Statements() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.seen))
}

// RequireIndex checks that a statement on one table finds its rows by an index whose name begins with one of the
// prefixes, without a scan or a sort. Its arguments are all "1".
func RequireIndex(t testing.TB, db *database.DB, query string, prefixes ...string) {
	t.Helper()
	query = strings.ReplaceAll(query, "LIMIT ?", "LIMIT 1")
	args := make([]any, strings.Count(query, "?"))
	for i := range args {
		args[i] = "1"
	}
	if db.Dialect == database.MySQL {
		requireMySQL(t, db, query, args, prefixes)
		return
	}
	var plan []struct{ Detail string }
	require.NoError(t, db.Write.Raw("EXPLAIN QUERY PLAN "+query, args...).Scan(&plan).Error, query)
	require.Len(t, plan, 1, "%s: %v", query, plan)
	detail := plan[0].Detail
	require.True(t, strings.HasPrefix(detail, "SEARCH ") && slices.ContainsFunc(prefixes, func(p string) bool {
		return strings.Contains(detail, "USING INDEX "+p) || p == "PRIMARY" && strings.Contains(detail, "USING INTEGER PRIMARY KEY")
	}), "%s: %s", query, detail)
}

// noSuchRow is what MySQL says when it looked for the one row that a whole unique key names while it made the plan.
const noSuchRow = "no matching row in const table"

func requireMySQL(t testing.TB, db *database.DB, query string, args []any, prefixes []string) {
	t.Helper()
	var plan []struct {
		Type, Key *string
		Extra     *string
	}
	require.NoError(t, db.Write.Raw("EXPLAIN FORMAT=TRADITIONAL "+query, args...).Scan(&plan).Error, query)
	require.Len(t, plan, 1, "%s: %v", query, plan)
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	kind, key, extra := text(plan[0].Type), text(plan[0].Key), text(plan[0].Extra)
	if strings.Contains(extra, noSuchRow) {
		return
	}
	require.Contains(t, []string{"const", "ref", "range"}, kind, "%s: key %q, %s", query, key, extra)
	require.NotContains(t, extra, "filesort", query)
	require.True(t, slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }), "%s: key %q, %s", query, key, extra)
}
