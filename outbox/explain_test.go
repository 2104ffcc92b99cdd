package outbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// fill inserts 100,000 records that are done (10,000 under the race detector, which makes SQLite crawl) and 1,000
// that wait.
func fill(t testing.TB, db *database.DB) {
	t.Helper()
	digits := "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
	name := "'%s' || n"
	if db.Dialect == database.MySQL {
		name = "CONCAT('%s', n)"
	}
	insert := `INSERT INTO t_event_record (msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version, partition_key, destination,
 payload, headers, status, next_retry_time, created_at)
 SELECT ` + name + `, 'main', 'order.created', ` + name + `, 'outbox', 'a', 1, 'k', 'T', 'x', '{}', '%s', {now}, {now}
 FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM ` +
		digits + " a, " + digits + " b, " + digits + " c, " + digits + " e, " + digits + " f) numbers WHERE n < %d"
	s := newStore(db)
	done := 100000
	if raceDetector {
		done = 10000
	}
	for _, part := range []struct {
		prefix, status string
		n              int
	}{{"s", "SUCCESS", done}, {"w", "WAIT", 1000}} {
		n, err := s.exec(t.Context(), fmt.Sprintf(insert, part.prefix, part.prefix, part.status, part.n))
		require.NoError(t, err)
		require.EqualValues(t, part.n, n)
	}
}

// TestEveryStatementUsesItsIndex at 100,000 records that are done: no scan of the table, nothing sorted (R32, R36).
func TestEveryStatementUsesItsIndex(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		fill(t, db)
		if db.Dialect == database.MySQL {
			require.NoError(t, db.Write.Exec("ANALYZE TABLE t_event_record").Error)
		}
		s := newStore(db)
		var last int64 // MySQL plans nothing for a row that is not there
		require.NoError(t, db.Read.Raw("SELECT MAX(id) FROM t_event_record").Scan(&last).Error)
		now, list, off := time.Now().UTC(), []int64{100001, 100002, 100003}, db.Dialect.Offset(time.Minute)
		due, dueArgs := s.dueSQL(claimRequest{sink: "main", limit: 20}, sqlDue, sqlDueThese)
		avoid, avoidArgs := s.dueSQL(claimRequest{sink: "main", limit: 1, avoid: list}, sqlDue, sqlDueThese)
		newest, newestArgs := s.dueSQL(claimRequest{sink: "main", limit: 20, newest: true}, sqlDue, sqlDueThese)
		page, pageArgs := s.duePageSQL(claimRequest{sink: "main", limit: 20, avoid: list}, cursor{}, 50)
		after, afterArgs := s.duePageSQL(claimRequest{sink: "main", limit: 20}, cursor{"2020-01-01 00:00:00.000", 1}, 50)
		last20, last20Args := s.duePageSQL(claimRequest{sink: "main", limit: 20, newest: true}, cursor{}, 20)
		one, oneArgs := s.dueSQL(claimRequest{sink: "main", limit: 1, only: []int64{last}}, sqlDue, sqlDueThese)
		type statement struct {
			sql   string
			args  []any
			index string // "" is the primary key
		}
		statements := map[string]statement{
			"due":              {due, dueArgs, "idx_status_next_retry"},
			"due, avoid":       {avoid, avoidArgs, "idx_status_next_retry"},
			"due, newest":      {newest, newestArgs, "idx_status_next_retry"},
			"due page":         {page, pageArgs, "idx_status_next_retry"},
			"due page, after":  {after, afterArgs, "idx_status_next_retry"},
			"due page, newest": {last20, last20Args, "idx_status_next_retry"},
			"due, one":         {one, oneArgs, ""},
			"claim":            {sqlClaim, []any{"me", off, list, "main"}, ""},
			"claimed":          {sqlClaimed, []any{list, "me"}, ""},
			"with owner":       {sqlWithOwner, []any{list, "SENDING", "me"}, ""},
			"renew":            {sqlRenew, []any{off, list, "me"}, ""},
			"success":          {sqlSuccess, []any{now, list, "me"}, ""},
			"release":          {sqlRelease, []any{list, "me"}, ""},
			"put off":          {sqlPutOff, []any{now, "x", list, "me"}, ""},
			"retry":            {sqlRetry, []any{1, off, now, "x", 100001, "me"}, ""},
			"fail":             {sqlFail, []any{1, now, "x", 100001, "me"}, ""},
			"expired":          {sqlExpired, []any{200}, "idx_status_next_retry"},
			"reclaim":          {sqlReclaim, []any{list, "me"}, ""},
			"bury":             {sqlBury, []any{now, "x", list, "me"}, ""},
			"backlog":          {sqlBacklog, nil, "idx_status_next_retry"},
			"counts":           {sqlCounts, nil, "idx_status_next_retry"},
			"overdue":          {sqlOverdue, nil, "idx_status_next_retry"},
			"ages":             {sqlAges, []any{list}, ""},
		}
		if db.Dialect == database.MySQL {
			lock, lockArgs := s.dueSQL(claimRequest{sink: "main", limit: 20}, sqlLockDue, sqlLockDueThese)
			statements["lock due"] = statement{lock, lockArgs, "idx_status_next_retry"}
			lock, lockArgs = s.dueSQL(claimRequest{sink: "main", limit: 1, only: []int64{last}}, sqlLockDue, sqlLockDueThese)
			statements["lock due, one"] = statement{lock, lockArgs, ""}
		}
		for name, f := range map[string]Filter{
			"list":                {},
			"list status":         {Status: StatusFail},
			"list status success": {Status: StatusSuccess},
			"list status, sink":   {Status: StatusWait, Sink: "main"},
		} {
			q, args := listSQL(f)
			statements[name] = statement{q, args, "idx_status_next_retry"}
		}
		for name, st := range statements {
			explain(t, db, name, s.dialect.Replace(st.sql), st.args, st.index)
		}
	})
}

func explain(t *testing.T, db *database.DB, name, query string, args []any, index string) {
	t.Helper()
	if db.Dialect == database.SQLite {
		var plan []struct{ Detail string }
		require.NoError(t, db.Write.Raw("EXPLAIN QUERY PLAN "+query, args...).Scan(&plan).Error, name)
		for _, step := range plan {
			require.NotContains(t, step.Detail, "TEMP B-TREE", name)
			if !strings.Contains(step.Detail, "t_event_record") {
				continue
			}
			want := "INTEGER PRIMARY KEY"
			if index != "" {
				want = "INDEX " + index
			}
			require.Contains(t, step.Detail, want, name)
		}
		require.NotEmpty(t, plan)
		return
	}
	var plan []struct {
		Type  string
		Key   *string
		Extra *string
	}
	require.NoError(t, db.Write.Raw("EXPLAIN FORMAT=TRADITIONAL "+query, args...).Scan(&plan).Error, name)
	require.Len(t, plan, 1, name)
	if index == "" {
		index = "PRIMARY"
	}
	require.NotNil(t, plan[0].Key, name)
	require.Equal(t, index, *plan[0].Key, name)
	require.NotEqual(t, "ALL", plan[0].Type, name)
	if plan[0].Extra != nil {
		require.NotContains(t, *plan[0].Extra, "filesort", name)
		require.NotContains(t, *plan[0].Extra, "temporary", name)
	}
}
