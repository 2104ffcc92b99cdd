package txmsg

import (
	"context"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
)

// The states of an attempt.
const (
	stateWaiting   int32 = iota // the half message is on its way
	stateLocal                  // acknowledged in time: the local transaction runs or has run
	stateAbandoned              // given up before it was acknowledged: nothing runs, ever
)

// attempt is one half message and its local transaction.
type attempt struct {
	halfbox.Attempt
	ctx   context.Context // the caller's
	local func(tx *gorm.DB, at halfbox.Attempt) error
	state atomic.Int32
	// stored is called once, when the state becomes local. Optional.
	stored func()
	ended  chan struct{} // closed when the local transaction has ended; err and panicked are set then

	err      error
	panicked any
}

func newAttempt(ctx context.Context, local func(tx *gorm.DB, at halfbox.Attempt) error) (*attempt, error) {
	at, err := halfbox.NewAttempt(halfbox.DeliveryTxmsg)
	if err != nil {
		return nil, err
	}
	return &attempt{Attempt: at, ctx: ctx, local: local, ended: make(chan struct{})}, nil
}

// begin claims the attempt for its local transaction; false means that it was abandoned.
func (a *attempt) begin() bool {
	if !a.state.CompareAndSwap(stateWaiting, stateLocal) {
		return false
	}
	call(a.stored)
	return true
}

// abandon gives the attempt up; false means that its local transaction has begun and must be waited for.
func (a *attempt) abandon() bool { return a.state.CompareAndSwap(stateWaiting, stateAbandoned) }
