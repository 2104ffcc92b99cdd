package order

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
)

// tombstonePrefix begins the order_no of a VOID row; no order number does.
const tombstonePrefix = "~"

// CreatedResolver answers check-backs of order.created: the order's row is the record of its transaction.
type CreatedResolver struct{ db *database.DB }

var (
	_ checkback.Resolver = (*CreatedResolver)(nil)
	_ checkback.Pinger   = (*CreatedResolver)(nil)
)

// NewCreatedResolver returns the resolver. db is a pool of its own with a short lock wait, see package checkback.
func NewCreatedResolver(db *database.DB) *CreatedResolver { return &CreatedResolver{db: db} }

// Ping reports nil when the database answers.
func (r *CreatedResolver) Ping(ctx context.Context) error { return r.db.Ping(ctx) }

// Find looks for the attempt by msg_id first and by order_no second.
func (r *CreatedResolver) Find(ctx context.Context, h checkback.Half) (checkback.Finding, error) {
	for _, by := range []struct{ column, value string }{{"msg_id", h.MsgID}, {"order_no", h.BizNo}} {
		if strings.ContainsFunc(by.value, func(c rune) bool { return c > '~' }) {
			continue // no order's number, and MySQL refuses to compare it with one
		}
		var found row
		err := r.db.Read.WithContext(ctx).Select("msg_id", "status").Where(by.column+" = ?", by.value).Take(&found).Error
		switch {
		case errors.Is(err, gorm.ErrRecordNotFound):
			continue
		case err != nil:
			return checkback.Absent, fmt.Errorf("read order by %s: %w", by.column, err)
		case found.MsgID != h.MsgID:
			return checkback.Superseded, nil
		case found.Status == StatusVoid:
			return checkback.Void, nil
		}
		// Also when the row appeared between the two reads and was found by order_no.
		return checkback.Committed, nil
	}
	return checkback.Absent, nil
}

// Bury inserts the tombstone, a VOID row that takes the attempt's msg_id and no order number.
func (r *CreatedResolver) Bury(ctx context.Context, h checkback.Half) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	tombstone := row{
		OrderNo: tombstonePrefix + h.MsgID, Status: StatusVoid, MsgID: h.MsgID, Delivery: halfbox.DeliveryTxmsg,
		PointsState: PointsPending, CreatedAt: now, UpdatedAt: now,
	}
	err := r.db.Write.WithContext(ctx).Create(&tombstone).Error
	if database.IsDuplicate(err) {
		return checkback.ErrTaken
	}
	if err != nil {
		return fmt.Errorf("insert tombstone: %w", err)
	}
	return nil
}
