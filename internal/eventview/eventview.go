// Package eventview is how event records are shown to operators: the same JSON from the command line and from the
// operator's listener.
package eventview

import (
	"encoding/json"
	"time"

	"github.com/halfbox/halfbox/outbox"
)

// Event is an event record. Times are UTC; next_retry_time, claimed_at and lease_until are by the database's clock.
type Event struct {
	ID               int64           `json:"id"`
	MsgID            string          `json:"msg_id"`
	Sink             string          `json:"sink"`
	Type             string          `json:"type"`
	BizNo            string          `json:"biz_no"`
	Status           outbox.Status   `json:"status"`
	Reason           string          `json:"reason,omitempty"` // of a dead letter
	Delivery         string          `json:"delivery"`
	AggregateID      string          `json:"aggregate_id"`
	AggregateVersion int64           `json:"aggregate_version"`
	PartitionKey     string          `json:"partition_key"`
	Destination      string          `json:"destination"`
	RetryCount       int             `json:"retry_count"`
	ReclaimCount     int             `json:"reclaim_count"`
	NextRetryTime    time.Time       `json:"next_retry_time"`
	ClaimOwner       string          `json:"claim_owner,omitempty"`
	ClaimedAt        *time.Time      `json:"claimed_at,omitempty"`
	LeaseUntil       *time.Time      `json:"lease_until,omitempty"`
	FirstErrorAt     *time.Time      `json:"first_error_at,omitempty"`
	LastError        string          `json:"last_error,omitempty"`
	CreatedAt        time.Time       `json:"created_at"`
	SentAt           *time.Time      `json:"sent_at,omitempty"`
	Headers          json.RawMessage `json:"headers,omitempty"`
	// Payload is the message's body: as it is when it is JSON, else as text in base 64.
	Payload any `json:"payload,omitempty"`
}

// Of shows one record.
func Of(e outbox.Entry) Event {
	v := Event{
		ID: e.ID, MsgID: e.MsgID, Sink: e.Sink, Type: e.EventType, BizNo: e.BizNo, Status: e.Status, Reason: e.Reason(),
		Delivery: string(e.Delivery), AggregateID: e.AggregateID, AggregateVersion: e.AggregateVersion,
		PartitionKey: e.PartitionKey, Destination: e.Destination, RetryCount: e.RetryCount, ReclaimCount: e.ReclaimCount,
		NextRetryTime: e.NextRetryTime, ClaimOwner: e.ClaimOwner, ClaimedAt: e.ClaimedAt, LeaseUntil: e.LeaseUntil,
		FirstErrorAt: e.FirstErrorAt, LastError: e.LastError, CreatedAt: e.CreatedAt, SentAt: e.SentAt,
	}
	if json.Valid([]byte(e.Headers)) {
		v.Headers = json.RawMessage(e.Headers)
	}
	switch {
	case len(e.Payload) == 0:
	case json.Valid(e.Payload):
		v.Payload = json.RawMessage(e.Payload)
	default:
		v.Payload = e.Payload
	}
	return v
}

// All shows many records; the result is never nil, so that JSON says [] and not null.
func All(entries []outbox.Entry) []Event {
	views := make([]Event, len(entries))
	for i, e := range entries {
		views[i] = Of(e)
	}
	return views
}

// Page is a part of the records that a filter selects. Next continues the search; without it there are no more.
type Page struct {
	Events []Event `json:"events"`
	Next   string  `json:"next,omitempty"`
}

// OfPage shows a page.
func OfPage(p outbox.Page) Page { return Page{Events: All(p.Entries), Next: p.Next} }

// Operation is what was done to dead letters, or would be.
type Operation struct {
	DryRun bool `json:"dry_run"`
	// RunID finds the rows of t_audit_log; empty when nothing was changed.
	RunID   string `json:"run_id,omitempty"`
	Matched int    `json:"matched"`
	Changed int    `json:"changed"`
	// More is true when the limit was reached: there may be others.
	More bool `json:"more"`
	// Events are the first hundred that matched, as they were before.
	Events []Event `json:"events"`
}

// OfOperation shows the result of a redrive or a purge.
func OfOperation(r outbox.OperationResult, dryRun bool) Operation {
	o := Operation{DryRun: dryRun, Matched: r.Matched, Changed: r.Changed, More: r.More, Events: All(r.Sample)}
	if r.Changed > 0 {
		o.RunID = r.RunID
	}
	return o
}

// BlockedKey is a key of an ordered sink that has a dead letter. All but the counts is of its first dead letter.
type BlockedKey struct {
	Key         string     `json:"partition_key"`
	Version     int64      `json:"aggregate_version"`
	MsgID       string     `json:"msg_id"`
	EventType   string     `json:"event_type"`
	DeadLetters int64      `json:"dead_letters"`
	Waiting     int        `json:"waiting"` // records behind it, 1000 at most
	Since       *time.Time `json:"first_error_at,omitempty"`
	LastError   string     `json:"last_error"`
}

// AllBlocked shows many keys; the result is never nil.
func AllBlocked(keys []outbox.BlockedKey) []BlockedKey {
	views := make([]BlockedKey, len(keys))
	for i, k := range keys {
		views[i] = BlockedKey(k)
	}
	return views
}

// BlockedPage is a part of the blocked keys. Next continues the list; without it there are no more.
type BlockedPage struct {
	Keys []BlockedKey `json:"keys"`
	Next string       `json:"next,omitempty"`
}

// OfBlocked shows the keys that a list with this limit has found.
func OfBlocked(keys []outbox.BlockedKey, limit int) BlockedPage {
	page := BlockedPage{Keys: AllBlocked(keys)}
	if len(keys) == limit {
		page.Next = keys[limit-1].Key
	}
	return page
}

// Stats is what the outbox holds.
type Stats struct {
	Sinks []SinkStats `json:"sinks"`
	// Overdue is the number of records in SENDING whose lease has run out: more than the relay's reclaim interval
	// later it should be 0.
	Overdue int64 `json:"overdue"`
}

// SinkStats is what the outbox holds for one sink.
type SinkStats struct {
	Sink    string `json:"sink"`
	Wait    int64  `json:"wait"`
	Sending int64  `json:"sending"`
	Success int64  `json:"success"`
	Fail    int64  `json:"fail"`
	// OldestUnsentSeconds is the age of the oldest record in WAIT or SENDING, by the database's clock; 0 without one.
	OldestUnsentSeconds float64 `json:"oldest_unsent_seconds"`
}

// OfStats shows a snapshot, sinks in the order of their first count.
func OfStats(s outbox.Snapshot) Stats {
	out := Stats{Sinks: []SinkStats{}, Overdue: s.Overdue}
	at := map[string]int{}
	for _, c := range s.Counts {
		i, ok := at[c.Sink]
		if !ok {
			i = len(out.Sinks)
			at[c.Sink] = i
			out.Sinks = append(out.Sinks, SinkStats{Sink: c.Sink, OldestUnsentSeconds: s.OldestUnsent[c.Sink].Seconds()})
		}
		switch sink := &out.Sinks[i]; c.Status {
		case outbox.StatusWait:
			sink.Wait = c.N
		case outbox.StatusSending:
			sink.Sending = c.N
		case outbox.StatusSuccess:
			sink.Success = c.N
		case outbox.StatusFail:
			sink.Fail = c.N
		}
	}
	return out
}
