package checkback

import (
	"context"
	"errors"
	"time"
)

// Half is a half message whose outcome the broker asks for.
type Half struct {
	// MsgID is the attempt's id.
	MsgID string
	// Type is the event type; it chooses the Resolver.
	Type string
	// BizNo is the business number, for example the order number.
	BizNo string
	// BornAt is when the half message was made, by the clock of the process that sent it.
	BornAt time.Time
}

// Finding is what a Resolver sees in the database.
type Finding int

// The findings. Absent is the zero value: it decides nothing.
const (
	Absent     Finding = iota // no trace of the attempt
	Committed                 // the attempt's own row
	Void                      // the attempt's tombstone
	Superseded                // another attempt of the same business fact has committed
)

// ErrUndecidable is what a Resolver's errors wrap when it can never decide about a half message, however often it is
// asked: no attempt has such an id, or its row may have been deleted after its retention. The broker is answered UNKNOWN,
// and a Rescuer keeps the half message as a dead letter.
var ErrUndecidable = errors.New("checkback: can never be decided")

// ErrTaken is what Bury returns when the attempt's msg_id is in the table already.
var ErrTaken = errors.New("checkback: the attempt has a row already")

// Resolver knows how the local transactions of some event types show in the database.
// It is called concurrently, with a MsgID that is a UUID in its usual form and any BizNo.
type Resolver interface {
	// Find looks for the attempt. Any error is answered with UNKNOWN, see ErrUndecidable.
	Find(ctx context.Context, h Half) (Finding, error)
	// Bury inserts the attempt's tombstone, or returns ErrTaken when the key is taken. Any other error is answered
	// with UNKNOWN.
	Bury(ctx context.Context, h Half) error
}

// Pinger is a Resolver that can tell whether its database answers at all. After an error of Find or Bury it is asked,
// and while it says no, check-backs are answered UNKNOWN at once instead of waiting for their deadline one by one.
type Pinger interface {
	// Ping reports nil when the database answers. It is given 250 ms.
	Ping(ctx context.Context) error
}
