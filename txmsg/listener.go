package txmsg

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
)

// listener is what the client calls. The client keeps it for ever, in a goroutine that never ends: after Stop it holds
// nothing.
type listener struct{ p *atomic.Pointer[Producer] }

func newListener(p *Producer) listener {
	l := listener{&atomic.Pointer[Producer]{}}
	l.p.Store(p)
	return l
}

// ExecuteLocalTransaction is called by the client, in the goroutine of send, when the half message is stored.
func (l listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	p := l.p.Load()
	if p == nil {
		return primitive.RollbackMessageState // stopped long ago, so it was abandoned
	}
	call(p.cfg.Hooks.HalfStored)
	v, ok := p.attempts.Load(m.TransactionId)
	if !ok || !v.(*attempt).begin() {
		p.metrics.lateAcks.Inc()
		p.cfg.Logger.Info("half message acknowledged after its attempt was abandoned, rolled back", zap.String("msg_id", m.TransactionId))
		return primitive.RollbackMessageState
	}
	call(p.cfg.Hooks.AfterHalf)
	return p.runLocal(v.(*attempt))
}

var errNotReturned = errors.New("txmsg: the local transaction ended its goroutine")

// runLocal runs the local transaction and says what the broker is told.
func (p *Producer) runLocal(a *attempt) primitive.LocalTransactionState {
	defer close(a.ended)
	began := time.Now()
	p.inTx(a)
	p.metrics.local.Observe(time.Since(began).Seconds())
	switch {
	case a.err == nil:
		call(p.cfg.Hooks.AfterLocalCommit)
		return primitive.CommitMessageState
	case errors.Is(a.err, halfbox.ErrUnknown):
		return primitive.UnkonwnState
	}
	return primitive.RollbackMessageState
}

// inTx sets the attempt's outcome.
func (p *Producer) inTx(a *attempt) {
	defer func() {
		// A panic belongs to the caller's goroutine; InTx has rolled back by now.
		if a.panicked = recover(); a.panicked != nil {
			// Where it came from is lost when the caller's goroutine panics with the same value.
			p.cfg.Logger.Error("local transaction panicked, rolled back", zap.String("msg_id", a.MsgID), zap.Any("panic", a.panicked), zap.ByteString("stack", debug.Stack()))
			a.err = halfbox.RolledBack(fmt.Errorf("local transaction panicked: %v", a.panicked))
		}
	}()
	ctx, cancel := context.WithTimeout(a.ctx, p.cfg.LocalTimeout)
	defer cancel()
	a.err = halfbox.RolledBack(errNotReturned) // unless InTx says otherwise: runtime.Goexit runs only what is deferred
	a.err = p.cfg.DB.InTx(ctx, func(tx *gorm.DB) error {
		if err := a.local(tx, a.Attempt); err != nil {
			return err
		}
		call(p.cfg.Hooks.BeforeLocalCommit)
		return nil
	})
}

// CheckLocalTransaction is called by the client, one check at a time, when the broker asks. A panic that left it would
// end the client's check loop for good.
func (l listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	p := l.p.Load()
	if p == nil || !p.checking.enter() {
		return primitive.UnkonwnState
	}
	defer p.checking.leave()
	return p.check(m)
}

func (p *Producer) check(m *primitive.MessageExt) (state primitive.LocalTransactionState) {
	defer func() {
		if v := recover(); v != nil {
			p.cfg.Logger.Error("check-back panicked", zap.String("msg_id", m.MsgId), zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
			state = primitive.UnkonwnState
		}
	}()
	answer := p.cfg.Checker.Check(p.checks, checkback.Half{
		MsgID:  m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex),
		Type:   m.GetTags(),
		BizNo:  m.GetKeys(),
		BornAt: time.UnixMilli(m.BornTimestamp),
	})
	switch answer {
	case checkback.Commit:
		return primitive.CommitMessageState
	case checkback.Rollback:
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

// gate counts the check-backs under way, of which the client has one at a time, and keeps new ones out once it is
// closed.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
	last   time.Time // when one was left
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.inside.Add(1)
	}
	return !g.closed
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = time.Now()
	g.inside.Done()
}

// close returns how long ago the last check-back was answered.
func (g *gate) close(ctx context.Context) (ago time.Duration, drained bool) {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	drained = waitFor(ctx, &g.inside)
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.last), drained
}
