package outbox

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/halfbox/halfbox/internal/database"
)

// Filter selects entries; zero fields select everything.
type Filter struct {
	Sink      string
	Status    Status
	EventType string
	BizNo     string
	// MsgID is one message, which has a record for each sink.
	MsgID string
	// Key is the partition key.
	Key string
	// Error is a part of last_error, in any case of its letters.
	Error string
	// OlderThan and NewerThan bound the age, the database's present time less created_at; 0 does not.
	OlderThan, NewerThan time.Duration
	// Limit is the largest number of entries. Defaults to 100 and is at most 1000.
	Limit int
	// After is Page.Next of the page before; the other fields must be the same.
	After string
}

const (
	defaultLimit = 100
	maxLimit     = 1000
	// scanBatch is how many records one statement of a search reads, and maxScan how many one Search.
	scanBatch = 500
	maxScan   = 10_000
)

// ErrBadCursor means that Filter.After is not what a search with this filter has returned.
var ErrBadCursor = errors.New("outbox: not the cursor of a search with this filter")

// Page is a part of the entries that a filter selects.
type Page struct {
	Entries []Entry
	// Next continues the search when it is put into Filter.After; empty at the end.
	Next string
	// Scanned is the number of records that were read to find Entries.
	Scanned int
}

// Search returns the next entries that f selects, without their payload, in the order in which they are or were due
// within a state and sink (of a key: in the order of their versions).
//
// MsgID, BizNo, Key, Status and Sink are looked up by an index. The other fields are compared record by record, at
// most 10,000 of them in one call: a Page may therefore be short, even empty, and still have a Next. A record that
// changes its state while a search goes from page to page may be missed or met twice.
func Search(ctx context.Context, db *database.DB, f Filter) (Page, error) {
	page, err := newStore(db).search(ctx, f)
	if err != nil {
		return Page{}, fmt.Errorf("outbox search: %w", err)
	}
	return page, nil
}

// List returns the first f.Limit entries that f selects, however many records have to be read for it; see Search,
// which bounds that.
func List(ctx context.Context, db *database.DB, f Filter) ([]Entry, error) {
	limit := f.limit()
	var entries []Entry
	for {
		f.Limit = limit - len(entries)
		page, err := Search(ctx, db, f)
		if err != nil {
			return nil, err
		}
		entries = append(entries, page.Entries...)
		if page.Next == "" || len(entries) == limit {
			return entries, nil
		}
		f.After = page.Next
	}
}

func (f Filter) limit() int {
	if f.Limit <= 0 {
		return defaultLimit
	}
	return min(f.Limit, maxLimit)
}

// matches compares what no index does.
func (f Filter) matches(e Entry, now time.Time) bool {
	age := now.Sub(e.CreatedAt)
	is := func(want, have string) bool { return want == "" || want == have }
	return is(f.Sink, e.Sink) && is(string(f.Status), string(e.Status)) && is(f.EventType, e.EventType) && is(f.BizNo, e.BizNo) &&
		is(f.MsgID, e.MsgID) && is(f.Key, e.PartitionKey) &&
		(f.Error == "" || strings.Contains(strings.ToLower(e.LastError), strings.ToLower(f.Error))) &&
		(f.OlderThan <= 0 || age > f.OlderThan) && (f.NewerThan <= 0 || age < f.NewerThan)
}

// segment is a stretch of one index that a search walks: the records whose columns have these values, in the order of
// a further column and the id. It is also what a cursor holds.
type segment struct {
	Index  string   `json:"i"`
	Values []string `json:"v"`
	// After is the last record that was read: the value of the further column, and its id.
	AfterTime    *time.Time `json:"t,omitempty"`
	AfterVersion int64      `json:"n,omitempty"`
	AfterID      int64      `json:"a,omitempty"`
}

// path is an index as a search walks it.
type path struct {
	hint    string   // names it in a statement
	columns []string // have the values of the segment
	order   string   // the further column; empty for an index whose stretches are short
}

func pathOf(index string) (path, bool) {
	p, ok := map[string]path{
		"msg": {"{by msg}", []string{"msg_id"}, ""},
		"biz": {"{by biz}", []string{"biz_no"}, ""},
		"key": {"{by key}", []string{"sink", "partition_key"}, "aggregate_version"},
		"due": {"{by due}", []string{"status", "sink"}, "next_retry_time"},
	}[index]
	return p, ok
}

func (s store) search(ctx context.Context, f Filter) (Page, error) {
	at, err := s.firstSegment(ctx, f)
	if err != nil {
		return Page{}, err
	}
	now, err := s.now(ctx)
	if err != nil {
		return Page{}, err
	}
	var page Page
	limit := f.limit()
	for at != nil {
		read, err := s.readSegment(ctx, *at)
		if err != nil {
			return Page{}, err
		}
		for _, e := range read {
			page.Scanned++
			at.AfterTime, at.AfterVersion, at.AfterID = &e.NextRetryTime, e.AggregateVersion, e.ID
			if f.matches(e, now) {
				page.Entries = append(page.Entries, e)
			}
			if len(page.Entries) == limit {
				return page, page.continueAt(at)
			}
		}
		if len(read) < scanBatch {
			if at, err = s.nextSegment(ctx, f, *at); err != nil {
				return Page{}, err
			}
		}
		if at != nil && page.Scanned >= maxScan {
			return page, page.continueAt(at)
		}
	}
	return page, nil
}

// now is the database's present time.
func (s store) now(ctx context.Context) (time.Time, error) {
	query := "SELECT CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
	if s.db.Dialect == database.MySQL {
		query = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	}
	var micros int64
	err := s.db.Read.WithContext(ctx).Raw(query).Scan(&micros).Error
	return time.UnixMicro(micros), err
}

func (p *Page) continueAt(at *segment) error {
	text, err := json.Marshal(at)
	p.Next = base64.RawURLEncoding.EncodeToString(text)
	return err
}

// firstSegment is where f's cursor points, or where its search begins; nil when nothing can match.
func (s store) firstSegment(ctx context.Context, f Filter) (*segment, error) {
	if f.After != "" {
		return f.cursor()
	}
	switch f.path() {
	case "msg":
		return &segment{Index: "msg", Values: []string{f.MsgID}}, nil
	case "biz":
		return &segment{Index: "biz", Values: []string{f.BizNo}}, nil
	case "key":
		return s.keySegment(ctx, f, "")
	}
	return s.dueSegment(ctx, f, "", "")
}

func (f Filter) path() string {
	switch {
	case f.MsgID != "":
		return "msg"
	case f.BizNo != "":
		return "biz"
	case f.Key != "":
		return "key"
	}
	return "due"
}

func (f Filter) cursor() (*segment, error) {
	text, err := base64.RawURLEncoding.DecodeString(f.After)
	if err != nil {
		return nil, ErrBadCursor
	}
	var at segment
	if err := json.Unmarshal(text, &at); err != nil {
		return nil, ErrBadCursor
	}
	p, ok := pathOf(at.Index)
	if !ok || at.Index != f.path() || len(at.Values) != len(p.columns) || p.order == "next_retry_time" && at.AfterID != 0 && at.AfterTime == nil {
		return nil, ErrBadCursor
	}
	return &at, nil
}

// nextSegment follows done, which has been read to its end; nil when done was the last.
func (s store) nextSegment(ctx context.Context, f Filter, done segment) (*segment, error) {
	switch {
	case done.Index == "key" && f.Sink == "":
		return s.keySegment(ctx, f, done.Values[0])
	case done.Index == "due":
		return s.dueSegment(ctx, f, Status(done.Values[0]), done.Values[1])
	}
	return nil, nil
}

// keySegment is that of f.Key in the next sink after the given one.
func (s store) keySegment(ctx context.Context, f Filter, after string) (*segment, error) {
	sink := f.Sink
	if sink == "" {
		var err error
		if sink, err = s.sinkAfter(ctx, "SELECT sink FROM t_event_record {by key} WHERE sink > ? ORDER BY sink LIMIT 1", after); err != nil || sink == "" {
			return nil, err
		}
	}
	return &segment{Index: "key", Values: []string{sink, f.Key}}, nil
}

// dueSegment is the next state and sink after the given ones, of those that f allows.
func (s store) dueSegment(ctx context.Context, f Filter, status Status, sink string) (*segment, error) {
	all := Statuses()
	slices.Sort(all)
	for _, next := range all {
		if f.Status != "" && next != f.Status || next < status {
			continue
		}
		if next != status {
			sink = ""
		}
		switch {
		case f.Sink != "" && sink == "":
			return &segment{Index: "due", Values: []string{string(next), f.Sink}}, nil
		case f.Sink != "":
			continue
		}
		found, err := s.sinkAfter(ctx, sqlSinkAfter, string(next), sink)
		if err != nil {
			return nil, err
		}
		if found != "" {
			return &segment{Index: "due", Values: []string{string(next), found}}, nil
		}
	}
	return nil, nil
}

// sqlSinkAfter goes from sink to sink by one look into the index each, however many records they have.
const sqlSinkAfter = "SELECT sink FROM t_event_record {by due} WHERE status = ? AND sink > ? ORDER BY sink LIMIT 1"

func (s store) sinkAfter(ctx context.Context, query string, args ...any) (string, error) {
	found, err := collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(query), args...), func(rs *sql.Rows) (sink string, err error) {
		return sink, rs.Scan(&sink)
	})
	if len(found) == 0 {
		return "", err
	}
	return found[0], err
}

func (s store) readSegment(ctx context.Context, at segment) ([]Entry, error) {
	query, args := s.segmentSQL(at)
	return collect(s.db.Read.WithContext(ctx).Raw(query, args...), func(rs *sql.Rows) (Entry, error) { return scanEntry(rs) })
}

func (s store) segmentSQL(at segment) (string, []any) {
	p, _ := pathOf(at.Index)
	var args []any
	query := sqlEntry + " FROM t_event_record " + p.hint + " WHERE "
	for i, c := range p.columns {
		query += c + " = ? AND "
		args = append(args, at.Values[i])
	}
	switch {
	case at.AfterID == 0:
		query = strings.TrimSuffix(query, " AND ")
	case p.order == "":
		query += "id > ?"
		args = append(args, at.AfterID)
	default:
		// The first comparison is the one that an index can begin at.
		var after any = at.AfterVersion
		if p.order == "next_retry_time" {
			after = s.timeArg(*at.AfterTime)
		}
		query += fmt.Sprintf("%s >= ? AND (%s > ? OR id > ?)", p.order, p.order)
		args = append(args, after, after, at.AfterID)
	}
	query += " ORDER BY "
	if p.order != "" {
		query += p.order + ", "
	}
	return s.dialect.Replace(query + "id LIMIT ?"), append(args, scanBatch)
}

// timeArg is t as the database's own clock writes it.
func (s store) timeArg(t time.Time) any {
	if s.db.Dialect == database.MySQL {
		return t.UTC()
	}
	return t.UTC().Format("2006-01-02 15:04:05.000")
}
