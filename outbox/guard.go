package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

// ErrIndex means that t_event_record lacks an index that the relay cannot do without.
var ErrIndex = errors.New("outbox: an index is missing")

// planned is a statement and the index that it names.
type planned struct {
	task  string
	sql   string
	args  []any
	index string // "" is the primary key
}

// CheckIndexes reports nil when claim, reclaim, purge, stats and list are planned by their indexes, without a scan of
// the table and without sorting. The error wraps ErrIndex, names the index and says what to do.
//
// Every statement names its index (FORCE INDEX, INDEXED BY), so that the plan depends neither on the size of the table
// nor on its statistics, and an index that is not there, or invisible, is an error. What an index of that name but
// with other columns cannot do shows in the plan. It plans the statements and runs none of them.
func CheckIndexes(ctx context.Context, db *database.DB) error {
	s := newStore(db)
	var wrong []error
	for _, p := range s.guarded() {
		fault, err := s.planFault(ctx, p)
		if err != nil {
			return fmt.Errorf("outbox: plan %s: %w", p.task, err)
		}
		if fault != "" {
			wrong = append(wrong, fmt.Errorf("%w: %s of t_event_record, for %s (%s): run halfbox migrate up; if that finds nothing to do: %s",
				ErrIndex, p.indexName(), p.task, fault, indexDDL(p.index)))
		}
	}
	return errors.Join(wrong...)
}

// guarded are the statements whose plan is looked at.
func (s store) guarded() []planned {
	many := sqlDue
	if s.db.Dialect == database.MySQL {
		many = sqlLockDue
	}
	due, dueArgs := s.dueSQL(claimRequest{sink: "-", limit: 20}, many, "")
	list, listArgs := s.segmentSQL(segment{Index: "due", Values: []string{"FAIL", "-"}})
	key, keyArgs := s.segmentSQL(segment{Index: "key", Values: []string{"-", "-"}})
	biz, bizArgs := s.segmentSQL(segment{Index: "biz", Values: []string{"-"}})
	msg, msgArgs := s.segmentSQL(segment{Index: "msg", Values: []string{"-"}})
	off := s.db.Dialect.Offset(-time.Hour)
	return []planned{
		{"claim", due, dueArgs, "idx_status_next_retry"},
		{"reclaim", sqlExpired, []any{reclaimBatch}, "idx_status_next_retry"},
		{"purge", sqlOldest, []any{off, off, off, 0, purgeBatch}, ""},
		{"stats", sqlBacklog, nil, "idx_status_next_retry"},
		{"stats", sqlOverdue, nil, "idx_status_next_retry"},
		{"list by state", list, listArgs, "idx_status_next_retry"},
		{"list by key", key, keyArgs, "idx_key_version"},
		{"list by business number", biz, bizArgs, "uk_biz_event_sink"},
		{"list by message", msg, msgArgs, "uk_msg_sink"},
	}
}

func (p planned) indexName() string {
	if p.index == "" {
		return "primary key"
	}
	return p.index
}

// mayBeSorted is true for the statements that meet a handful of records.
func (p planned) mayBeSorted() bool { return strings.HasPrefix(p.index, "uk_") }

// planFault says what is wrong with the plan of p, empty when nothing is.
func (s store) planFault(ctx context.Context, p planned) (string, error) {
	query := s.dialect.Replace(p.sql)
	if s.db.Dialect == database.SQLite {
		return s.planFaultSQLite(ctx, p, query)
	}
	var plan []struct {
		Type, PossibleKeys, Key, Extra *string
	}
	err := s.db.Read.WithContext(ctx).Raw("EXPLAIN FORMAT=TRADITIONAL "+query, p.args...).Scan(&plan).Error
	if database.IsNoIndex(err) {
		return "it is not there", nil
	}
	if err != nil {
		return "", err
	}
	want := p.index
	if want == "" {
		want = "PRIMARY"
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	for _, step := range plan {
		extra := text(step.Extra)
		switch {
		case strings.Contains(extra, "no matching row in const table"), strings.Contains(extra, "Impossible"):
			// Looked up while planning, by a unique key.
		case text(step.Key) != want, text(step.Type) == "ALL", text(step.Type) == "index" && !strings.Contains(text(step.PossibleKeys), want):
			// Of a small table the optimizer may read the whole index, but only for want of a reason to look into it.
			return "it is not used", nil
		case strings.Contains(extra, "temporary"), strings.Contains(extra, "filesort") && !p.mayBeSorted():
			return "it has other columns", nil
		}
	}
	return "", nil
}

func (s store) planFaultSQLite(ctx context.Context, p planned, query string) (string, error) {
	var plan []struct{ Detail string }
	err := s.db.Read.WithContext(ctx).Connection(func(conn *gorm.DB) error {
		// EXPLAIN alone goes by the tables as this connection has last seen them.
		if err := conn.Exec("SELECT id FROM t_event_record LIMIT 1").Error; err != nil {
			return err
		}
		return conn.Raw("EXPLAIN QUERY PLAN "+query, p.args...).Scan(&plan).Error
	})
	if database.IsNoIndex(err) {
		return "it is not there", nil
	}
	if err != nil {
		return "", err
	}
	want := "USING INTEGER PRIMARY KEY ("
	if p.index != "" {
		want = "INDEX " + p.index + " ("
	}
	for _, step := range plan {
		switch {
		case strings.Contains(step.Detail, "TEMP B-TREE") && !p.mayBeSorted():
			return "it has other columns", nil
		case !strings.Contains(step.Detail, "t_event_record"):
		case !strings.HasPrefix(step.Detail, "SEARCH"), !strings.Contains(step.Detail, want):
			return "it is not used", nil
		}
	}
	return "", nil
}

// indexDDL makes an index as the migrations do.
func indexDDL(name string) string {
	columns := map[string]string{
		"idx_status_next_retry": "status, sink, next_retry_time, id",
		"idx_key_version":       "sink, partition_key, aggregate_version",
		"uk_biz_event_sink":     "biz_no, event_type, sink",
		"uk_msg_sink":           "msg_id, sink",
	}[name]
	if columns == "" {
		return "make the table again as the migrations do"
	}
	kind := "INDEX"
	if strings.HasPrefix(name, "uk_") {
		kind = "UNIQUE INDEX"
	}
	return fmt.Sprintf("CREATE %s %s ON t_event_record (%s)", kind, name, columns)
}

// ErrNotChecked is what Relay.Ready says until the indexes were looked at.
var ErrNotChecked = errors.New("outbox: the relay has not seen its indexes yet")

// Ready reports nil when the relay works. Until the indexes were found it claims nothing, and Ready says why: the
// database cannot be reached, or an index is missing.
func (r *Relay) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unready
}

func (r *Relay) setReady(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unready = err
}

// awaitIndexes returns when the indexes are there, or ctx has ended (false).
func (r *Relay) awaitIndexes(ctx context.Context) bool {
	last := ""
	for pause := r.cfg.PollMin; ; pause = min(2*pause, 5*r.cfg.PollMax) {
		err := r.checkIndexes(ctx)
		if ctx.Err() != nil {
			return false
		}
		r.setReady(err)
		if err == nil {
			return true
		}
		if text := err.Error(); text != last {
			r.cfg.Logger.Error("the relay does not start to work", zap.Error(err))
			last = text
		}
		if !sleep(ctx, pause) {
			return false
		}
	}
}

func (r *Relay) checkIndexes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*r.cfg.StatementTimeout)
	defer cancel()
	return CheckIndexes(ctx, r.cfg.DB)
}
