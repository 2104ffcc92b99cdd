package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

// Widths of the columns of t_audit_log, in characters.
const (
	maxActor  = 128
	maxReason = 512
)

const (
	sqlAudit = `INSERT INTO t_audit_log (run_id, action, actor, reason, msg_id, sink, event_type, biz_no, detail, created_at) VALUES `

	sqlAudits = `SELECT run_id, action, actor, reason, msg_id, sink, event_type, biz_no, detail, created_at FROM t_audit_log`
)

// Action is what an operator did to a record.
type Action string

// The actions.
const (
	ActionRedrive Action = "redrive" // FAIL -> WAIT
	ActionPurge   Action = "purge"   // a dead letter was deleted
)

// Audit is a row of t_audit_log: one action on one record. It is written in the transaction of the action, so it is
// there exactly if the action took place.
type Audit struct {
	RunID     string // one call; its rows were not necessarily written in one transaction
	Action    Action
	Actor     string
	Reason    string
	MsgID     string
	Sink      string
	EventType string
	BizNo     string
	Detail    string // last_error of the record at the time
	CreatedAt time.Time
}

// AuditsOf returns what was done to a message, oldest first.
func AuditsOf(ctx context.Context, db *database.DB, msgID string) ([]Audit, error) {
	return audits(ctx, db, sqlAudits+" WHERE msg_id = ? ORDER BY id", msgID)
}

// AuditsOfRun returns what one call of Redrive or PurgeDead has done, oldest first, at most limit rows.
func AuditsOfRun(ctx context.Context, db *database.DB, runID string, limit int) ([]Audit, error) {
	return audits(ctx, db, sqlAudits+" WHERE run_id = ? ORDER BY id LIMIT ?", runID, limit)
}

func audits(ctx context.Context, db *database.DB, query string, args ...any) ([]Audit, error) {
	found, err := collect(db.Read.WithContext(ctx).Raw(query, args...), func(rs *sql.Rows) (a Audit, err error) {
		var detail sql.NullString
		err = rs.Scan(&a.RunID, &a.Action, &a.Actor, &a.Reason, &a.MsgID, &a.Sink, &a.EventType, &a.BizNo, &detail, &a.CreatedAt)
		a.Detail, a.CreatedAt = detail.String, a.CreatedAt.UTC()
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox audit: %w", err)
	}
	return found, nil
}

// insertAudits writes one row for each.
func insertAudits(tx *gorm.DB, rows []Audit) error {
	var args []any
	for _, a := range rows {
		args = append(args, a.RunID, a.Action, a.Actor, a.Reason, a.MsgID, a.Sink, a.EventType, a.BizNo, a.Detail, a.CreatedAt)
	}
	query := sqlAudit + strings.TrimSuffix(strings.Repeat("(?, ?, ?, ?, ?, ?, ?, ?, ?, ?), ", len(rows)), ", ")
	n, err := affected(tx.Exec(query, args...))
	if err == nil && n != int64(len(rows)) {
		err = fmt.Errorf("%d of %d rows written", n, len(rows))
	}
	if err != nil {
		return fmt.Errorf("write t_audit_log: %w", err)
	}
	return nil
}

// checkAuditText says what is wrong with a text that t_audit_log has to hold.
func checkAuditText(name, value string, width int) error {
	switch {
	case strings.TrimSpace(value) == "":
		return fmt.Errorf("%w: %s is missing", ErrBadOperation, name)
	case !utf8.ValidString(value):
		return fmt.Errorf("%w: %s is not valid UTF-8", ErrBadOperation, name)
	case utf8.RuneCountInString(value) > width:
		return fmt.Errorf("%w: %s is longer than %d characters", ErrBadOperation, name, width)
	}
	return nil
}
