package outbox

import (
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
	done := 100_000
	if raceDetector {
		done = 10_000
	}
	fillWith(t, db, "s", StatusSuccess, 0, done)
	fillWith(t, db, "w", StatusWait, 0, 1000)
}

// fillWith inserts the records from..to-1 of a state, 10,000 in a statement: each must end within the read timeout of
// a busy machine.
func fillWith(t testing.TB, db *database.DB, prefix string, status Status, from, to int) {
	t.Helper()
	digits := "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)"
	name := "'" + prefix + "' || (? + n)"
	if db.Dialect == database.MySQL {
		name = "CONCAT('" + prefix + "', ? + n)"
	}
	s := newStore(db)
	for ; from < to; from += 10_000 {
		n, err := s.exec(t.Context(), `INSERT INTO t_event_record (msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version,
 partition_key, destination, payload, headers, status, next_retry_time, created_at)
 SELECT `+name+`, 'main', 'order.created', `+name+`, 'outbox', 'a', 1, 'k', 'T', 'x', '{}', ?, {now}, {now}
 FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM `+
			digits+" a, "+digits+" b, "+digits+" c, "+digits+" e) numbers WHERE n < ?", from, from, status, to-from)
		require.NoError(t, err)
		require.EqualValues(t, min(10_000, to-from), n)
	}
}

// TestEveryStatementUsesItsIndex at 100,000 records that are done: no scan of the table, nothing sorted (R32, R36).
func TestEveryStatementUsesItsIndex(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		fill(t, db)
		explainEveryStatement(t, db)
	})
}

func explainEveryStatement(t *testing.T, db *database.DB) {
	t.Helper()
	if db.Dialect == database.MySQL {
		require.NoError(t, db.Write.Exec("ANALYZE TABLE t_event_record").Error)
	}
	s := newStore(db)
	var last int64 // MySQL plans nothing for a row that is not there
	require.NoError(t, db.Read.Raw("SELECT MAX(id) FROM t_event_record WHERE status = 'WAIT'").Scan(&last).Error)
	now, list, off := time.Now().UTC(), []int64{100001, 100002, 100003}, db.Dialect.Offset(time.Minute)
	due, dueArgs := s.dueSQL(claimRequest{sink: "main", limit: 20}, sqlDue, sqlDueThese)
	avoid, avoidArgs := s.dueSQL(claimRequest{sink: "main", limit: 1, avoid: list}, sqlDue, sqlDueThese)
	clock, err := s.clock(t.Context())
	require.NoError(t, err)
	since, sinceArgs := s.dueSQL(claimRequest{sink: "main", limit: 20, since: clock, avoid: list}, sqlDue, sqlDueThese)
	until, untilArgs := s.dueSQL(claimRequest{sink: "main", limit: 20, until: clock, avoid: list}, sqlDue, sqlDueThese)
	page, pageArgs := s.duePageSQL(claimRequest{sink: "main", limit: 20, avoid: list}, cursor{}, 50)
	after, afterArgs := s.duePageSQL(claimRequest{sink: "main", limit: 20}, cursor{"2020-01-01 00:00:00.000", 1}, 50)
	bounded, boundedArgs := s.duePageSQL(claimRequest{sink: "main", limit: 20, until: clock}, cursor{"2020-01-01 00:00:00.000", 1}, 50)
	last20, last20Args := s.duePageSQL(claimRequest{sink: "main", limit: 20, since: clock, newest: true}, cursor{}, 20)
	one, oneArgs := s.dueSQL(claimRequest{sink: "main", limit: 1, only: []int64{last}}, sqlDue, sqlDueThese)
	type statement struct {
		sql   string
		args  []any
		index string // "" is the primary key
	}
	statements := map[string]statement{
		"due":              {due, dueArgs, "idx_status_next_retry"},
		"due, avoid":       {avoid, avoidArgs, "idx_status_next_retry"},
		"due, since":       {since, sinceArgs, "idx_status_next_retry"},
		"due, until":       {until, untilArgs, "idx_status_next_retry"},
		"due page":         {page, pageArgs, "idx_status_next_retry"},
		"due page, after":  {after, afterArgs, "idx_status_next_retry"},
		"due page, until":  {bounded, boundedArgs, "idx_status_next_retry"},
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
		lock, lockArgs = s.dueSQL(claimRequest{sink: "main", limit: 20, since: clock}, sqlLockDue, sqlLockDueThese)
		statements["lock due, since"] = statement{lock, lockArgs, "idx_status_next_retry"}
		lock, lockArgs = s.dueSQL(claimRequest{sink: "main", limit: 20, until: clock}, sqlLockDue, sqlLockDueThese)
		statements["lock due, until"] = statement{lock, lockArgs, "idx_status_next_retry"}
		lock, lockArgs = s.dueSQL(claimRequest{sink: "main", limit: 1, only: []int64{last}}, sqlLockDue, sqlLockDueThese)
		statements["lock due, one"] = statement{lock, lockArgs, ""}
	}
	for name, seg := range map[string]segment{
		"list done":             {Index: "due", Values: []string{"SUCCESS", "main"}},
		"list done, go on":      {Index: "due", Values: []string{"SUCCESS", "main"}, AfterTime: &now, AfterID: last},
		"list waiting":          {Index: "due", Values: []string{"WAIT", "main"}},
		"list of a key":         {Index: "key", Values: []string{"main", "k"}},
		"list of a key, go on":  {Index: "key", Values: []string{"main", "k"}, AfterVersion: 1, AfterID: last},
		"list of a dead letter": {Index: "due", Values: []string{"FAIL", "main"}},
	} {
		q, args := s.segmentSQL(seg)
		index := "idx_status_next_retry"
		if seg.Index == "key" {
			index = "idx_key_version"
		}
		statements[name] = statement{q, args, index}
	}
	statements["sinks"] = statement{sqlSinkAfter, []any{"WAIT", "a"}, "idx_status_next_retry"}
	oldest, oldestArgs, err := s.oldestDueSQL(t.Context(), "main", false)
	require.NoError(t, err)
	statements["oldest due"] = statement{oldest, append([]any{"WAIT"}, oldestArgs...), "idx_status_next_retry"}
	held := strings.Replace(sqlOldestDue, "{held}", sqlNotHeld, 1)
	statements["oldest due, not held"] = statement{held, []any{"WAIT", "main", []string{"a", "b"}}, "idx_status_next_retry"}
	statements["purge, look"] = statement{sqlOldest, []any{off, off, off, 0, purgeBatch}, ""}
	statements["purge"] = statement{sqlPurge, []any{list, off, off}, ""}
	statements["lock dead"] = statement{sqlLockDead, []any{list}, ""}
	statements["redrive"] = statement{sqlRedrive, []any{list}, ""}
	statements["purge dead"] = statement{sqlPurgeDead, []any{list}, ""}
	for name, st := range statements {
		explain(t, db, name, s.dialect.Replace(st.sql), st.args, st.index)
	}
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
