package txmsg

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
)

var (
	errCallerGone = errors.New("txmsg: the caller gave up")
	// errNotStored is the publisher's own: a local transaction may return halfbox.ErrUnavailable too, and has run.
	errNotStored = fmt.Errorf("%w: half message not stored", halfbox.ErrUnavailable)
	errDeadline  = errors.New("not acknowledged in time")
	errNoRoute   = errors.New("the broker has not been found yet")
)

// PublishInTx sends ev as a half message, runs local in one database transaction and commits or rolls back the half
// message by its outcome. See the package for what the error says.
func (p *Producer) PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	if !p.enter() {
		return halfbox.Receipt{}, halfbox.RolledBack(fmt.Errorf("%w: %w", halfbox.ErrUnavailable, ErrStopped))
	}
	defer p.calls.Done()
	receipt, err := p.publishOnce(ctx, ev, local)
	if errors.Is(err, halfbox.ErrVoided) {
		// A check-back was faster than the local transaction. Its tombstone belongs to that attempt alone.
		p.metrics.voided.Inc()
		receipt, err = p.publishOnce(ctx, ev, local)
	}
	if errors.Is(err, errNotStored) && p.cfg.Fallback != nil {
		p.metrics.fallback.Inc()
		return p.cfg.Fallback.PublishInTx(ctx, ev, local)
	}
	p.metrics.outcome(err).Inc()
	return receipt, err
}

// publishOnce is one attempt. Its error wraps errNotStored when the local transaction was not begun and a fallback may
// take over.
func (p *Producer) publishOnce(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	a, err := newAttempt(ctx, local)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	msg, err := p.message(ev, a.MsgID)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	settle, err := p.breaker.Allow()
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(fmt.Errorf("%w, nor tried: %w", errNotStored, err))
	}
	call(p.cfg.Hooks.BeforeHalf)
	began := time.Now()
	a.stored = func() {
		settle(nil)
		p.metrics.half.Observe(time.Since(began).Seconds())
	}
	p.attempts.Store(a.MsgID, a)
	defer p.attempts.Delete(a.MsgID)
	if err := p.run(a, msg, began.Add(p.cfg.HalfTimeout)); err != nil {
		settle(err)
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	if a.panicked != nil {
		panic(a.panicked)
	}
	return halfbox.Receipt{Attempt: a.Attempt}, a.err
}

// run sends the half message; nil means that its local transaction has ended, an error that it will never begin.
func (p *Producer) run(a *attempt, msg *primitive.Message, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(a.ctx, deadline)
	if err := p.awaitRoute(ctx); err != nil {
		cancel()
		if a.ctx.Err() != nil {
			return fmt.Errorf("%w: %w", errCallerGone, context.Cause(a.ctx))
		}
		return fmt.Errorf("%w: %w", errNotStored, err)
	}
	return p.await(ctx, a, p.send(ctx, cancel, a, msg))
}

// awaitRoute waits for the client's first look for the broker: a send beside it can find the topic and no address.
func (p *Producer) awaitRoute(ctx context.Context) error {
	select {
	case <-p.routed:
		return nil
	default:
	}
	select {
	case <-p.routed:
		return nil
	case <-ctx.Done():
		return errNoRoute
	case <-p.warming.Done():
		return ErrStopped
	}
}

// send hands the half message to the client in another goroutine: the client ignores deadlines in places, and it runs
// the local transaction and END_TRANSACTION inside the same call. The channel gets the client's verdict.
func (p *Producer) send(ctx context.Context, cancel context.CancelFunc, a *attempt, msg *primitive.Message) <-chan error {
	sent := make(chan error, 1)
	p.senders.do(func() {
		defer cancel()
		defer func() {
			if v := recover(); v != nil {
				p.cfg.Logger.Error("RocketMQ client panicked while sending", zap.String("msg_id", a.MsgID), zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
				select {
				case sent <- fmt.Errorf("%w: client panicked: %v", errNotStored, v):
				default: // it panicked after its verdict
				}
			}
		}()
		if ctx.Err() != nil {
			// The client would write with a deadline that has passed, and close the connection of all for it: until the
			// next heartbeat the broker could not ask this producer. Only a pause between here and its write still does
			// that. await says why nothing was sent.
			return
		}
		res, err := p.client.SendMessageInTransaction(ctx, msg)
		sent <- halfError(res, err)
		if err == nil && a.state.Load() == stateLocal {
			call(p.cfg.Hooks.AfterEnd)
		}
	})
	return sent
}

// await waits until the local transaction has ended (nil) or will never begin (an error). It does not wake up in
// between, when the local transaction begins: that would cost every caller a turn more.
func (p *Producer) await(ctx context.Context, a *attempt, sent <-chan error) error {
	var err error
	select {
	case <-a.ended:
		return nil
	case err = <-sent:
	case <-ctx.Done():
		select {
		case err = <-sent: // its end ended ctx
		default:
			err = fmt.Errorf("%w: %w (%v)", errNotStored, errDeadline, p.cfg.HalfTimeout)
		}
	}
	if err == nil { // the client says "stored", so the local transaction must have begun
		err = fmt.Errorf("%w: local transaction not run", errNotStored)
	}
	if !a.abandon() {
		<-a.ended
		return nil
	}
	if a.ctx.Err() != nil { // whatever the client made of it
		return fmt.Errorf("%w: %w", errCallerGone, context.Cause(a.ctx))
	}
	return err
}
