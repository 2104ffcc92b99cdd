package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

const sqlEntry = `SELECT id, msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version, partition_key, destination,
 headers, status, retry_count, reclaim_count, next_retry_time, claim_owner, claimed_at, lease_until, first_error_at, last_error,
 created_at, sent_at`

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

// ErrNotFound means that there is no such record.
var ErrNotFound = errors.New("outbox: no such event record")

// Get returns the records of a message, one for each sink, with their payload. ErrNotFound when there is none.
func Get(ctx context.Context, db *database.DB, msgID string) ([]Entry, error) {
	entries, err := collect(db.Read.WithContext(ctx).Raw(sqlEntry+", payload FROM t_event_record WHERE msg_id = ? ORDER BY sink", msgID), func(rs *sql.Rows) (Entry, error) {
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
