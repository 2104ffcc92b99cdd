package order

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

//go:embed migrations
var migrations embed.FS

// Migrations is this package's line of migrations: t_order.
func Migrations() database.Line { return database.Line{Name: "order", Files: migrations} }

// row is a row of t_order.
type row struct {
	ID             int64
	OrderNo        string
	UserID         int64
	AmountCents    int64
	Status         Status
	Version        int64
	MsgID          string
	Delivery       halfbox.Delivery
	IdempotencyKey *string
	RequestHash    string
	PointsState    PointsState
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// TableName tells gorm the table.
func (row) TableName() string { return "t_order" }

func (r row) order() Order {
	return Order{
		OrderNo: r.OrderNo, UserID: r.UserID, AmountCents: r.AmountCents, Status: r.Status, Version: r.Version,
		MsgID: r.MsgID, Delivery: r.Delivery, PointsState: r.PointsState,
		CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
	}
}

func uniqueKey(name string, columns ...string) database.UniqueKey {
	return database.UniqueKey{Table: "t_order", Name: name, Columns: columns}
}

func ukMsgID() database.UniqueKey { return uniqueKey("uk_msg_id", "msg_id") }
func ukIdempotency() database.UniqueKey {
	return uniqueKey("uk_idempotency", "user_id", "idempotency_key")
}

const insertOrder = "INSERT INTO t_order (order_no, user_id, amount_cents, status, version, msg_id, delivery," +
	" idempotency_key, request_hash, points_state, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

// insert writes a new order inside tx. Meeting the attempt's own tombstone is halfbox.ErrVoided; the idempotency
// key's owner is errKeyTaken. It is by hand because it runs for every order: gorm's Create costs as much CPU time again
// as the driver's part of the statement.
func insert(tx *gorm.DB, r row) error {
	_, err := database.Exec(tx, insertOrder, r.OrderNo, r.UserID, r.AmountCents, r.Status, r.Version, r.MsgID, r.Delivery,
		r.IdempotencyKey, r.RequestHash, r.PointsState, r.CreatedAt, r.UpdatedAt)
	switch {
	case err == nil:
		return nil
	case ukMsgID().ViolatedBy(err):
		return fmt.Errorf("%w: %w", halfbox.ErrVoided, err)
	case ukIdempotency().ViolatedBy(err):
		return fmt.Errorf("%w: %w", errKeyTaken, err)
	}
	return fmt.Errorf("insert order: %w", err)
}

// cancel makes next of an order that is still CREATED at the version before next's, inside tx. An order that is not
// is errMoved: nothing was changed.
func cancel(tx *gorm.DB, next row) error {
	res := tx.Exec("UPDATE t_order SET status = ?, version = ?, updated_at = ? WHERE order_no = ? AND status = ? AND version = ?",
		StatusCancelled, next.Version, next.UpdatedAt, next.OrderNo, StatusCreated, next.Version-1)
	if res.Error != nil {
		return fmt.Errorf("cancel order: %w", res.Error)
	}
	if res.RowsAffected != 1 {
		return errMoved
	}
	return nil
}

// errMoved says that the order is not as it was read.
var errMoved = errors.New("order has changed since it was read")

var errKeyTaken = errors.New("idempotency key is taken")

// byNo reads an order; ErrNotFound when there is none.
func byNo(ctx context.Context, db *gorm.DB, orderNo string) (row, error) {
	return take(db.WithContext(ctx).Where("order_no = ? AND status <> ?", orderNo, StatusVoid))
}

// byKey reads the order that a user's idempotency key made; ErrNotFound when there is none.
func byKey(ctx context.Context, db *gorm.DB, userID int64, key string) (row, error) {
	return take(db.WithContext(ctx).Where("user_id = ? AND idempotency_key = ?", userID, key))
}

func take(query *gorm.DB) (row, error) {
	var r row
	err := query.Take(&r).Error
	if errors.Is(err, gorm.ErrRecordNotFound) {
		return row{}, ErrNotFound
	}
	if err != nil {
		return row{}, fmt.Errorf("read order: %w", err)
	}
	return r, nil
}
