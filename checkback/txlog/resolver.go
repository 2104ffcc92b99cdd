package txlog

import (
	"context"
	"fmt"
	"time"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
)

// Resolver answers check-backs of every event type whose local transactions are recorded in t_tx_log.
type Resolver struct{ db *database.DB }

var (
	_ checkback.Resolver = (*Resolver)(nil)
	_ checkback.Pinger   = (*Resolver)(nil)
)

// NewResolver returns the resolver. db is a pool of its own with a short lock wait, see package checkback.
func NewResolver(db *database.DB) *Resolver { return &Resolver{db: db} }

// Ping reports nil when the database answers.
func (r *Resolver) Ping(ctx context.Context) error { return r.db.Ping(ctx) }

// Find looks for the attempt's own row, and for nothing else.
func (r *Resolver) Find(ctx context.Context, h checkback.Half) (checkback.Finding, error) {
	var state string
	err := r.db.Read.WithContext(ctx).Raw("SELECT state FROM t_tx_log WHERE tx_id = ?", h.MsgID).Scan(&state).Error
	switch {
	case err != nil:
		return checkback.Absent, fmt.Errorf("read transaction log: %w", err)
	case state == stateCommitted:
		return checkback.Committed, nil
	case state == stateVoid:
		return checkback.Void, nil
	case state == "":
		return checkback.Absent, nil
	}
	return checkback.Absent, fmt.Errorf("transaction %s is in the unknown state %q", h.MsgID, state)
}

// Bury inserts the tombstone, unless the half message is so old that a row of its transaction may have been purged.
func (r *Resolver) Bury(ctx context.Context, h checkback.Half) error {
	if age := time.Since(h.BornAt); age > MinRetention {
		return fmt.Errorf("%w: it is %v old, and rows of t_tx_log may be deleted after %v", checkback.ErrUndecidable, age.Round(time.Second), MinRetention)
	}
	at := halfbox.Attempt{MsgID: h.MsgID, Delivery: halfbox.DeliveryTxmsg}
	err := r.db.Write.WithContext(ctx).Exec(insert, values(at, stateVoid, h.Type, h.BizNo)...).Error
	if database.IsDuplicate(err) {
		return checkback.ErrTaken
	}
	if err != nil {
		return fmt.Errorf("insert tombstone: %w", err)
	}
	return nil
}
