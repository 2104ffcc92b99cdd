package outbox

import (
	"context"
	"database/sql"
	"strings"
)

// The SQL of ordered sinks.
const (
	// sqlDuePage is sqlDue with what the order of keys needs, from a place on. The time is text behind an "@",
	// so that it comes back to the database as it was.
	sqlDuePage = `SELECT id, partition_key, aggregate_version, reclaim_count, {due text} FROM t_event_record {by due}
 WHERE status = 'WAIT' AND sink = ? AND next_retry_time <= {now}{since}{until}{after}{avoid} ORDER BY next_retry_time{newest}, id{newest} LIMIT ?`

	sqlAfter = ` AND next_retry_time >= ? AND (next_retry_time > ? OR id > ?)`

	// sqlPredecessor finds the state of the next lower record of a key. Each is one step in idx_key_version, because
	// its bounds are constants; a join would walk the whole key on MySQL. {unparked} is empty or passes over dead letters.
	sqlPredecessor = `SELECT * FROM (SELECT ? AS n, status FROM t_event_record {by key}
 WHERE sink = ? AND partition_key = ? AND aggregate_version <= ? AND (aggregate_version < ? OR id < ?){unparked}
 ORDER BY aggregate_version DESC, id DESC LIMIT 1) AS p`

	sqlUnparked = ` AND status <> 'FAIL'`
)

// predecessorsAtOnce bounds the records that one statement asks about. SQLite joins at most 500 SELECTs.
const predecessorsAtOnce = 100

// duePage returns up to size due records after a place, or the newest ones.
func (s store) duePage(ctx context.Context, q claimRequest, after cursor, size int) ([]keyed, error) {
	query, args := s.duePageSQL(q, after, size)
	return collect(s.db.Read.WithContext(ctx).Raw(query, args...), func(rs *sql.Rows) (k keyed, err error) {
		err = rs.Scan(&k.id, &k.key, &k.version, &k.reclaims, &k.due)
		k.due = strings.TrimPrefix(k.due, "@")
		return k, err
	})
}

func (s store) duePageSQL(q claimRequest, after cursor, size int) (string, []any) {
	f := filling{sqlDuePage, []any{q.sink}}
	f.fill("{since}", sqlSince, q.since != "", q.since)
	f.fill("{until}", sqlUntil, q.until != "", q.until)
	f.fill("{after}", sqlAfter, after != cursor{}, after.due, after.due, after.id)
	f.fill("{avoid}", sqlAvoid, len(q.avoid) > 0, q.avoid)
	f.fill("{newest}", " DESC", q.newest)
	return s.dialect.Replace(f.query), append(f.args, size)
}

// heldBack reports for each of rows whether a lower record of its key has still to be sent.
func (s store) heldBack(ctx context.Context, sink string, rows []keyed, park bool) ([]bool, error) {
	held := make([]bool, len(rows))
	for from := 0; from < len(rows); from += predecessorsAtOnce {
		query, args := s.predecessorsSQL(sink, rows[from:min(from+predecessorsAtOnce, len(rows))], from, park)
		type predecessor struct {
			n      int
			status Status
		}
		found, err := collect(s.db.Read.WithContext(ctx).Raw(query, args...), func(rs *sql.Rows) (p predecessor, err error) {
			return p, rs.Scan(&p.n, &p.status)
		})
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			held[p.n] = p.status != StatusSuccess
		}
	}
	return held, nil
}

func (s store) predecessorsSQL(sink string, rows []keyed, from int, park bool) (string, []any) {
	unparked := ""
	if park {
		unparked = sqlUnparked
	}
	one := s.dialect.Replace(strings.Replace(sqlPredecessor, "{unparked}", unparked, 1))
	queries, args := make([]string, len(rows)), make([]any, 0, 6*len(rows))
	for i, k := range rows {
		queries[i] = one
		args = append(args, from+i, sink, k.key, k.version, k.version, k.id)
	}
	return strings.Join(queries, "\nUNION ALL\n"), args
}
