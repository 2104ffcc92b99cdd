package outbox

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

//go:embed migrations
var migrations embed.FS

// Migrations is this package's line of migrations: t_event_record.
func Migrations() database.Line { return database.Line{Name: "outbox", Files: migrations} }

// The SQL of the state machine. {now} and {now+} become the database's own clock, so due times and leases never
// depend on a machine's clock. {now+} takes one argument, made by Dialect.Offset.
//
// Every transition names the old status and, where there is one, the claim_owner; its caller looks at the affected
// rows. Ids in lists are sorted, so that two statements over the same rows lock them in the same order.
//
// {by id}, {by due}, {by key}, {by biz} and {by msg} name the one index that a statement may use. A planner that prefers another
// would walk a whole backlog for each claim; and a table without the index is an error at once, not a slow relay.
const (
	// sqlInsert makes a record: none -> WAIT.
	sqlInsert = `INSERT INTO t_event_record
 (msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version, partition_key, destination, payload, headers,
  status, retry_count, reclaim_count, next_retry_time, created_at)
 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'WAIT', 0, 0, {now+}, ?)`

	sqlColumns = `id, msg_id, event_type, biz_no, destination, partition_key, aggregate_version, payload, headers, retry_count, reclaim_count`

	// sqlDue finds what may be claimed, in the order of idx_status_next_retry. {since}, {until} and {avoid} are empty or
	// leave records out.
	sqlDue = `SELECT id, reclaim_count FROM t_event_record {by due}
 WHERE status = 'WAIT' AND sink = ? AND next_retry_time <= {now}{since}{until}{avoid} ORDER BY next_retry_time, id LIMIT ?`

	// sqlLockDue is sqlDue with the rows locked and read whole; rows that another claim has locked are passed over.
	sqlLockDue = `SELECT ` + sqlColumns + ` FROM t_event_record {by due}
 WHERE status = 'WAIT' AND sink = ? AND next_retry_time <= {now}{since}{until}{avoid} ORDER BY next_retry_time, id LIMIT ? FOR UPDATE SKIP LOCKED`

	sqlSince = ` AND next_retry_time > ?`
	sqlUntil = ` AND next_retry_time <= ?`
	sqlAvoid = ` AND id NOT IN ?`

	// sqlDueThese and sqlLockDueThese are the same for certain records.
	sqlDueThese     = `SELECT id, reclaim_count FROM t_event_record {by id}` + sqlIfDue
	sqlLockDueThese = `SELECT ` + sqlColumns + ` FROM t_event_record {by id}` + sqlIfDue + ` FOR UPDATE SKIP LOCKED`
	sqlIfDue        = ` WHERE id IN ? AND sink = ? AND status = 'WAIT' AND next_retry_time <= {now}`

	// sqlClaim: WAIT -> SENDING. A row that is no longer due was claimed and put back meanwhile: it is not ours.
	sqlClaim = `UPDATE t_event_record {by id} SET status = 'SENDING', claim_owner = ?, claimed_at = {now}, lease_until = {now+}
 WHERE id IN ? AND sink = ? AND status = 'WAIT' AND next_retry_time <= {now}`

	// sqlClaimed reads what a claim won. What sqlDue saw may be older than the row that was then claimed.
	sqlClaimed = `SELECT ` + sqlColumns + ` FROM t_event_record {by id} WHERE id IN ? AND status = 'SENDING' AND claim_owner = ?`

	// sqlWithOwner finds the rows of a claim that have the given status.
	sqlWithOwner = `SELECT id FROM t_event_record {by id} WHERE id IN ? AND status = ? AND claim_owner = ?`

	// sqlRenew keeps SENDING and moves the lease.
	sqlRenew = `UPDATE t_event_record {by id} SET lease_until = {now+} WHERE id IN ? AND status = 'SENDING' AND claim_owner = ?`

	// sqlSuccess: SENDING -> SUCCESS. claim_owner stays, as the record of who sent it.
	sqlSuccess = `UPDATE t_event_record {by id} SET status = 'SUCCESS', lease_until = NULL, sent_at = ?
 WHERE id IN ? AND status = 'SENDING' AND claim_owner = ?`

	// sqlRelease: SENDING -> WAIT, for rows that were not handed to the sink.
	sqlRelease = `UPDATE t_event_record {by id} SET status = 'WAIT', claim_owner = NULL, lease_until = NULL
 WHERE id IN ? AND status = 'SENDING' AND claim_owner = ?`

	// sqlPutOff: SENDING -> WAIT, for rows whose sink is unreachable. No retry is spent, and the row keeps its place.
	sqlPutOff = `UPDATE t_event_record {by id} SET status = 'WAIT', claim_owner = NULL, lease_until = NULL,
 first_error_at = COALESCE(first_error_at, ?), last_error = ?
 WHERE id IN ? AND status = 'SENDING' AND claim_owner = ?`

	// sqlRetry: SENDING -> WAIT, after a failure that spends a retry.
	sqlRetry = `UPDATE t_event_record {by id} SET status = 'WAIT', claim_owner = NULL, lease_until = NULL, retry_count = ?,
 next_retry_time = {now+}, first_error_at = COALESCE(first_error_at, ?), last_error = ?
 WHERE id = ? AND status = 'SENDING' AND claim_owner = ?`

	// sqlFail: SENDING -> FAIL. claim_owner stays.
	sqlFail = `UPDATE t_event_record {by id} SET status = 'FAIL', lease_until = NULL, retry_count = ?,
 first_error_at = COALESCE(first_error_at, ?), last_error = ?
 WHERE id = ? AND status = 'SENDING' AND claim_owner = ?`

	// sqlExpired finds leases that have run out. It reads all that is SENDING, which is no more than the relays' batches;
	// an index on lease_until would be written four times for each event that is sent.
	sqlExpired = `SELECT id, sink, claim_owner, reclaim_count FROM t_event_record {by due}
 WHERE status = 'SENDING' AND lease_until <= {now} LIMIT ?`

	// sqlReclaim: SENDING -> WAIT, of a lease that has run out and was not renewed since sqlExpired saw it.
	sqlReclaim = `UPDATE t_event_record {by id} SET status = 'WAIT', claim_owner = NULL, lease_until = NULL, reclaim_count = reclaim_count + 1
 WHERE id IN ? AND status = 'SENDING' AND claim_owner = ? AND lease_until <= {now}`

	// sqlBury: SENDING -> FAIL, of a row that outlives its relays.
	sqlBury = `UPDATE t_event_record {by id} SET status = 'FAIL', lease_until = NULL, reclaim_count = reclaim_count + 1,
 first_error_at = COALESCE(first_error_at, ?), last_error = ?
 WHERE id IN ? AND status = 'SENDING' AND claim_owner = ? AND lease_until <= {now}`
)

// store runs the statements. It keeps no state.
type store struct {
	db      *database.DB
	dialect *strings.Replacer
}

func newStore(db *database.DB) store {
	byID, byIndex, forUpdate := "NOT INDEXED", "INDEXED BY %s", "" // SQLite finds rows by their id without an index
	asText := "'@' || %s"                                          // its driver makes a time of whatever looks like one
	remove := "DELETE FROM t_event_record "
	if db.Dialect == database.MySQL {
		byID, byIndex, forUpdate = "FORCE INDEX (PRIMARY)", "FORCE INDEX (%s)", " FOR UPDATE"
		asText = "CONCAT('@', %s)"
		remove = "DELETE t_event_record FROM t_event_record " // the form that takes a hint
	}
	return store{db: db, dialect: strings.NewReplacer(
		"{now}", db.Dialect.Now(), "{now+}", db.Dialect.NowPlus(), "{age}", ageMicros(db.Dialect), "{overdue}", overdueMicros(db.Dialect),
		"{by id}", byID, "{by due}", fmt.Sprintf(byIndex, "idx_status_next_retry"),
		"{due text}", fmt.Sprintf(asText, "next_retry_time"), "{now text}", fmt.Sprintf(asText, db.Dialect.Now()),
		"{by key}", fmt.Sprintf(byIndex, "idx_key_version"), "{by biz}", fmt.Sprintf(byIndex, "uk_biz_event_sink"),
		"{by msg}", fmt.Sprintf(byIndex, "uk_msg_sink"), "{for update}", forUpdate, "{delete by id}", remove+byID,
	)}
}

// fact is t as a column of the application's clock holds it, in UTC whatever the pool of the statement would make of it.
func (s store) fact(t time.Time) string {
	if s.db.Dialect == database.MySQL {
		return t.UTC().Format("2006-01-02 15:04:05.000000")
	}
	return t.UTC().Format("2006-01-02 15:04:05.999999999-07:00")
}

func uniqueKey(name string, columns ...string) database.UniqueKey {
	return database.UniqueKey{Table: "t_event_record", Name: name, Columns: columns}
}

func ukMsgSink() database.UniqueKey { return uniqueKey("uk_msg_sink", "msg_id", "sink") }

func ukBizEventSink() database.UniqueKey {
	return uniqueKey("uk_biz_event_sink", "biz_no", "event_type", "sink")
}

func (s store) insert(tx *gorm.DB, r newRecord) error {
	err := tx.Exec(s.dialect.Replace(sqlInsert),
		r.MsgID, r.sink, r.EventType, r.BizNo, r.delivery, r.aggregateID, r.AggregateVersion, r.PartitionKey, r.Destination,
		r.Payload, r.headers, s.db.Dialect.Offset(r.delay), s.fact(r.createdAt)).Error
	switch {
	case err == nil:
		return nil
	case ukMsgSink().ViolatedBy(err):
		return fmt.Errorf("%w: %w", ErrDuplicateMessage, err)
	case ukBizEventSink().ViolatedBy(err):
		return s.duplicateFact(tx, r, err)
	}
	return fmt.Errorf("insert event record: %w", err)
}

// duplicateFact says which record is there already: the same message violates both keys, and each database names
// another one first.
func (s store) duplicateFact(tx *gorm.DB, r newRecord, cause error) error {
	var same int
	if err := tx.Raw("SELECT COUNT(*) FROM t_event_record WHERE msg_id = ? AND sink = ?", r.MsgID, r.sink).Scan(&same).Error; err != nil {
		return fmt.Errorf("look for the record of message %s: %w", r.MsgID, err)
	}
	if same > 0 {
		return fmt.Errorf("%w: %w", ErrDuplicateMessage, cause)
	}
	return fmt.Errorf("%w: %w", ErrDuplicateFact, cause)
}

// row is a claimed event record.
type row struct {
	id       int64
	rec      Record
	retries  int
	reclaims int
	badErr   error // the record cannot be sent as it stands
}

func ids(rows []row) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = r.id
	}
	slices.Sort(out)
	return out
}

// due returns the records that q may claim; only id and reclaims are set.
func (s store) due(ctx context.Context, q claimRequest) ([]row, error) {
	query, args := s.dueSQL(q, sqlDue, sqlDueThese)
	return collect(s.db.Read.WithContext(ctx).Raw(query, args...), func(rs *sql.Rows) (r row, err error) {
		return r, rs.Scan(&r.id, &r.reclaims)
	})
}

// lockDue returns the records that q may claim, locked until tx ends, and the number of those beyond q.bytes.
func (s store) lockDue(tx *gorm.DB, q claimRequest) (rows []row, cut int, err error) {
	query, args := s.dueSQL(q, sqlLockDue, sqlLockDueThese)
	return collectRows(tx.Raw(query, args...), q.bytes)
}

func (s store) dueSQL(q claimRequest, many, these string) (string, []any) {
	if len(q.only) > 0 {
		return s.dialect.Replace(these), []any{sorted(q.only), q.sink}
	}
	f := filling{many, []any{q.sink}}
	f.fill("{since}", sqlSince, q.since != "", q.since)
	f.fill("{until}", sqlUntil, q.until != "", q.until)
	f.fill("{avoid}", sqlAvoid, len(q.avoid) > 0, q.avoid)
	return s.dialect.Replace(f.query), append(f.args, q.limit)
}

// filling is a query whose places are filled from its beginning to its end, and the arguments so far.
type filling struct {
	query string
	args  []any
}

// fill puts text and its arguments in a place, or nothing.
func (f *filling) fill(place, text string, wanted bool, values ...any) {
	if !wanted {
		text, values = "", nil
	}
	f.query, f.args = strings.ReplaceAll(f.query, place, text), append(f.args, values...)
}

// clock is the database's time, as it writes next_retry_time.
func (s store) clock(ctx context.Context) (string, error) {
	read, err := collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace("SELECT {now text}")), func(rs *sql.Rows) (now string, err error) {
		return now, rs.Scan(&now)
	})
	if err != nil {
		return "", fmt.Errorf("ask for the time: %w", err)
	}
	return strings.TrimPrefix(read[0], "@"), nil
}

func (s store) claim(db *gorm.DB, owner, sink string, ids []int64, lease time.Duration) (int64, error) {
	return affected(db.Exec(s.dialect.Replace(sqlClaim), owner, s.db.Dialect.Offset(lease), ids, sink))
}

// claimed returns what owner has claimed of ids, and the number of those beyond the limit of bytes.
func (s store) claimed(ctx context.Context, owner string, ids []int64, bytes int) (rows []row, cut int, err error) {
	return collectRows(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlClaimed), ids, owner), bytes)
}

func (s store) withOwner(ctx context.Context, owner string, status Status, ids []int64) ([]int64, error) {
	return collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlWithOwner), ids, status, owner), func(rs *sql.Rows) (id int64, err error) {
		return id, rs.Scan(&id)
	})
}

func (s store) renew(ctx context.Context, owner string, ids []int64, lease time.Duration) (int64, error) {
	return s.exec(ctx, sqlRenew, s.db.Dialect.Offset(lease), ids, owner)
}

func (s store) success(ctx context.Context, owner string, ids []int64, at time.Time) (int64, error) {
	return s.exec(ctx, sqlSuccess, at, ids, owner)
}

func (s store) release(ctx context.Context, owner string, ids []int64) (int64, error) {
	return s.exec(ctx, sqlRelease, ids, owner)
}

func (s store) putOff(ctx context.Context, owner string, ids []int64, at time.Time, text string) (int64, error) {
	return s.exec(ctx, sqlPutOff, at, text, ids, owner)
}

func (s store) retry(ctx context.Context, owner string, id int64, retries int, after time.Duration, at time.Time, text string) (int64, error) {
	return s.exec(ctx, sqlRetry, retries, s.db.Dialect.Offset(after), at, text, id, owner)
}

func (s store) fail(ctx context.Context, owner string, id int64, retries int, at time.Time, text string) (int64, error) {
	return s.exec(ctx, sqlFail, retries, at, text, id, owner)
}

// expiredRow is a record whose lease has run out.
type expiredRow struct {
	id       int64
	sink     string
	owner    string
	reclaims int
}

func (s store) expired(ctx context.Context, limit int) ([]expiredRow, error) {
	return collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlExpired), limit), func(rs *sql.Rows) (r expiredRow, err error) {
		return r, rs.Scan(&r.id, &r.sink, &r.owner, &r.reclaims)
	})
}

func (s store) reclaim(ctx context.Context, owner string, ids []int64) (int64, error) {
	return s.exec(ctx, sqlReclaim, ids, owner)
}

func (s store) bury(ctx context.Context, owner string, ids []int64, at time.Time, text string) (int64, error) {
	return s.exec(ctx, sqlBury, at, text, ids, owner)
}

func (s store) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return affected(s.db.Write.WithContext(ctx).Exec(s.dialect.Replace(query), args...))
}

func affected(db *gorm.DB) (int64, error) { return db.RowsAffected, db.Error }

// collectRows keeps the rows of a query up to a limit of bytes of payload, the first in any case, and counts the others.
func collectRows(query *gorm.DB, limit int) (rows []row, cut int, err error) {
	size := 0
	all, err := collect(query, func(rs *sql.Rows) (r row, err error) {
		if r, err = scanRow(rs); err != nil {
			return r, err
		}
		size += len(r.rec.Payload)
		if limit > 0 && size > limit && size > len(r.rec.Payload) {
			cut++
			return row{}, nil // its payload is forgotten at once
		}
		return r, nil
	})
	return all[:max(0, len(all)-cut)], cut, err
}

func scanRow(rs *sql.Rows) (r row, err error) {
	var headers []byte
	err = rs.Scan(&r.id, &r.rec.MsgID, &r.rec.EventType, &r.rec.BizNo, &r.rec.Destination, &r.rec.PartitionKey,
		&r.rec.AggregateVersion, &r.rec.Payload, &headers, &r.retries, &r.reclaims)
	if err != nil {
		return row{}, err
	}
	// One bad record must not keep the others of its claim from being read.
	r.badErr = json.Unmarshal(headers, &r.rec.Headers)
	return r, nil
}

// collect runs a query and scans all of its rows.
func collect[T any](query *gorm.DB, scan func(*sql.Rows) (T, error)) ([]T, error) {
	rs, err := query.Rows()
	if err != nil {
		return nil, err
	}
	defer rs.Close()
	var out []T
	for rs.Next() {
		v, err := scan(rs)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rs.Err()
}
