package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// The SQL of the questions asked about the outbox. {age} is the age of a record in microseconds: the database's
// time less created_at.
const (
	sqlCounts = `SELECT status, sink, COUNT(*), MIN(id) FROM t_event_record {by due} GROUP BY status, sink`

	// sqlBacklog is sqlCounts without the records that are done, whose number only grows.
	sqlBacklog = `SELECT status, sink, COUNT(*), MIN(id) FROM t_event_record {by due}
 WHERE status IN ('FAIL', 'SENDING', 'WAIT') GROUP BY status, sink`

	sqlOverdue = `SELECT COUNT(*) FROM t_event_record {by due} WHERE status = 'SENDING' AND lease_until <= {now}`

	sqlAges = `SELECT id, {age} FROM t_event_record WHERE id IN ?`

	sqlEntry = `SELECT id, msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version, partition_key, destination,
 headers, status, retry_count, reclaim_count, next_retry_time, claim_owner, claimed_at, lease_until, first_error_at, last_error,
 created_at, sent_at`
)

func ageMicros(d database.Dialect) string {
	if d == database.MySQL {
		return "TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6))"
	}
	return "CAST((julianday('now') - julianday(created_at)) * 86400000000 AS INTEGER)"
}

// Count is the number of records of one sink in one state.
type Count struct {
	Sink   string
	Status Status
	N      int64
}

// Snapshot is what the outbox holds.
type Snapshot struct {
	Counts []Count
	// OldestUnsent is the age of the oldest record in WAIT or SENDING per sink: the database's present time less
	// created_at, never negative. A sink without such records is not in it.
	OldestUnsent map[string]time.Duration
	// Overdue is the number of SENDING records whose lease has run out and that no relay has reclaimed yet.
	Overdue int64
}

// Stats counts the records of every sink and state. Done records are counted too, so it reads an index as long as
// the table.
func Stats(ctx context.Context, db *database.DB) (Snapshot, error) {
	return newStore(db).stats(ctx, sqlCounts)
}

func (s store) stats(ctx context.Context, countSQL string) (Snapshot, error) {
	st := Snapshot{OldestUnsent: map[string]time.Duration{}}
	oldest := map[string]int64{} // sink -> lowest unsent id
	counts, err := collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(countSQL)), func(rs *sql.Rows) (c Count, err error) {
		var first int64
		if err := rs.Scan(&c.Status, &c.Sink, &c.N, &first); err != nil {
			return c, err
		}
		if c.Status == StatusWait || c.Status == StatusSending {
			if old, ok := oldest[c.Sink]; !ok || first < old {
				oldest[c.Sink] = first
			}
		}
		return c, nil
	})
	if err != nil {
		return Snapshot{}, fmt.Errorf("outbox stats: %w", err)
	}
	st.Counts = counts
	if err := s.ages(ctx, oldest, st.OldestUnsent); err != nil {
		return Snapshot{}, fmt.Errorf("outbox stats: %w", err)
	}
	if err := s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlOverdue)).Scan(&st.Overdue).Error; err != nil {
		return Snapshot{}, fmt.Errorf("outbox stats: %w", err)
	}
	return st, nil
}

func (s store) ages(ctx context.Context, oldest map[string]int64, into map[string]time.Duration) error {
	if len(oldest) == 0 {
		return nil
	}
	want := make([]int64, 0, len(oldest))
	for _, id := range oldest {
		want = append(want, id)
	}
	type age struct{ id, micros int64 }
	ages, err := collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlAges), sorted(want)), func(rs *sql.Rows) (a age, err error) {
		return a, rs.Scan(&a.id, &a.micros)
	})
	if err != nil {
		return err
	}
	for sink, id := range oldest {
		for _, a := range ages {
			if a.id == id {
				into[sink] = max(0, time.Duration(a.micros)*time.Microsecond)
			}
		}
	}
	return nil
}

// Entry is an event record with its delivery state. Times are UTC; NextRetryTime, ClaimedAt and LeaseUntil are the
// database's clock, the others the application's.
type Entry struct {
	ID               int64
	MsgID            string
	Sink             string
	EventType        string
	BizNo            string
	Delivery         halfbox.Delivery
	AggregateID      string
	AggregateVersion int64
	PartitionKey     string
	Destination      string
	Headers          string // JSON
	Payload          []byte // only from Get
	Status           Status
	RetryCount       int
	ReclaimCount     int
	NextRetryTime    time.Time
	ClaimOwner       string
	ClaimedAt        *time.Time
	LeaseUntil       *time.Time
	FirstErrorAt     *time.Time
	LastError        string // of a dead letter it begins with the reason
	CreatedAt        time.Time
	SentAt           *time.Time
}

// Filter selects entries; zero fields select everything.
type Filter struct {
	Sink      string
	Status    Status
	EventType string
	BizNo     string
	// Limit defaults to 100 and is at most 1000.
	Limit int
}

// ErrNotFound means that there is no such record.
var ErrNotFound = errors.New("outbox: no such event record")

// List returns entries without their payload, in the order in which they are or were due within a sink and state.
func List(ctx context.Context, db *database.DB, f Filter) ([]Entry, error) {
	query, args := listSQL(f)
	entries, err := collect(db.Read.WithContext(ctx).Raw(newStore(db).dialect.Replace(query), args...), func(rs *sql.Rows) (Entry, error) { return scanEntry(rs) })
	if err != nil {
		return nil, fmt.Errorf("outbox list: %w", err)
	}
	return entries, nil
}

func listSQL(f Filter) (string, []any) {
	var where []string
	var args []any
	add := func(column, value string) {
		if value != "" {
			where, args = append(where, column+" = ?"), append(args, value)
		}
	}
	add("status", string(f.Status))
	add("sink", f.Sink)
	add("biz_no", f.BizNo)
	add("event_type", f.EventType)
	query := sqlEntry + " FROM t_event_record"
	if f.BizNo == "" {
		query += " {by due}"
	}
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	// The order of idx_status_next_retry, so that nothing has to be sorted.
	query += " ORDER BY status, sink, next_retry_time, id LIMIT ?"
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	return query, append(args, min(limit, 1000))
}

// Get returns the records of a message, one for each sink, with their payload. ErrNotFound when there is none.
func Get(ctx context.Context, db *database.DB, msgID string) ([]Entry, error) {
	entries, err := collect(db.Read.WithContext(ctx).Raw(sqlEntry+", payload FROM t_event_record WHERE msg_id = ? ORDER BY sink", msgID),
		func(rs *sql.Rows) (Entry, error) {
			var payload []byte
			e, err := scanEntry(rs, &payload)
			e.Payload = payload
			return e, err
		})
	if err != nil {
		return nil, fmt.Errorf("outbox get: %w", err)
	}
	if len(entries) == 0 {
		return nil, ErrNotFound
	}
	return entries, nil
}

func scanEntry(rs *sql.Rows, more ...any) (e Entry, err error) {
	var owner, lastError sql.NullString
	err = rs.Scan(append([]any{
		&e.ID, &e.MsgID, &e.Sink, &e.EventType, &e.BizNo, &e.Delivery, &e.AggregateID, &e.AggregateVersion, &e.PartitionKey, &e.Destination,
		&e.Headers, &e.Status, &e.RetryCount, &e.ReclaimCount, &e.NextRetryTime, &owner, &e.ClaimedAt, &e.LeaseUntil, &e.FirstErrorAt, &lastError,
		&e.CreatedAt, &e.SentAt,
	}, more...)...)
	e.ClaimOwner, e.LastError = owner.String, lastError.String
	e.NextRetryTime, e.CreatedAt = e.NextRetryTime.UTC(), e.CreatedAt.UTC()
	return e, err
}

// Reason is why the record is a dead letter, one of the Reason constants; empty when it is none.
func (e Entry) Reason() string {
	if e.Status != StatusFail {
		return ""
	}
	reason, _, _ := strings.Cut(e.LastError, ": ")
	return reason
}

func sorted(ids []int64) []int64 {
	out := slices.Clone(ids)
	slices.Sort(out)
	return out
}
