package order

import (
	"errors"
	"fmt"
	"time"

	"github.com/halfbox/halfbox"
)

// Status is the state of an order's row.
type Status string

// The states. VOID is a tombstone and never shown.
const (
	StatusCreated   Status = "CREATED"
	StatusCancelled Status = "CANCELLED"
	StatusVoid      Status = "VOID"
)

// PointsState says how far the points of an order have come, as the points service reported it.
type PointsState string

// The points states: PENDING -> CREDITED | REJECTED, any -> REVERSED.
const (
	PointsPending  PointsState = "PENDING"
	PointsCredited PointsState = "CREDITED"
	PointsReversed PointsState = "REVERSED"
	PointsRejected PointsState = "REJECTED"
)

// Order is one order.
type Order struct {
	OrderNo     string
	UserID      int64
	AmountCents int64
	Status      Status
	Version     int64
	MsgID       string
	Delivery    halfbox.Delivery
	PointsState PointsState
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// Errors that a caller can act on.
var (
	// ErrNotFound means that there is no such order.
	ErrNotFound = errors.New("order not found")
	// ErrBusy means that an order kept changing while it was being cancelled. Nothing was written.
	ErrBusy = errors.New("order keeps changing")
	// ErrKeyReused means that the Idempotency-Key was used before with another request.
	ErrKeyReused = errors.New("idempotency key was used with another request")
)

// InvalidError says what is wrong with a request. Field is the name in the request's JSON.
type InvalidError struct {
	Field  string
	Reason string
}

func (e *InvalidError) Error() string { return fmt.Sprintf("%s %s", e.Field, e.Reason) }

// UnknownError says that COMMIT's answer was lost: the order exists, or is cancelled, or not. Ask with Get(OrderNo), or
// repeat the request: a Create with the same Idempotency-Key, a Cancel as it is. It wraps halfbox.ErrUnknown.
type UnknownError struct {
	OrderNo string
	Err     error
}

func (e *UnknownError) Error() string { return fmt.Sprintf("order %s: %v", e.OrderNo, e.Err) }

// Unwrap gives the cause.
func (e *UnknownError) Unwrap() error { return e.Err }
