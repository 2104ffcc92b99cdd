package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback/txlog"
)

// cancelTries limits how often an order is read again that has changed since. Only a cancel changes it, so the second
// look settles it.
const cancelTries = 5

// Cancel makes a CREATED order CANCELLED and sends order.cancelled if and only if that is committed. An order that is
// cancelled already is returned as it is.
//
// Errors: *InvalidError, ErrNotFound, *UnknownError (the order is cancelled or it is not; cancelling again resolves
// it), or one that wraps halfbox.ErrRolledBack (nothing has changed).
func (s *Service) Cancel(ctx context.Context, req CancelRequest) (Order, error) {
	if err := s.validateDelivery(req.Delivery); err != nil {
		return Order{}, err
	}
	for range cancelTries {
		r, err := s.look(ctx, req.OrderNo)
		if err != nil {
			return Order{}, err
		}
		if r.Status == StatusCancelled {
			return r.order(), nil
		}
		o, err := s.cancel(ctx, r, req.Delivery)
		if !errors.Is(err, errMoved) {
			return o, err
		}
	}
	return Order{}, fmt.Errorf("cancel order %s: %w", req.OrderNo, halfbox.RolledBack(ErrBusy))
}

// cancel cancels the order as it was read; errMoved when it is not like that any more.
func (s *Service) cancel(ctx context.Context, r row, d halfbox.Delivery) (Order, error) {
	next := r
	next.Status, next.Version = StatusCancelled, r.Version+1
	next.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
	ev, err := event(EventCancelled, next.order())
	if err != nil {
		return Order{}, err
	}
	_, err = s.publisher(d).PublishInTx(ctx, ev, func(tx *gorm.DB, at halfbox.Attempt) error {
		if err := cancel(tx, next); err != nil {
			return err
		}
		return txlog.Record(tx, at, EventCancelled, next.OrderNo)
	})
	if errors.Is(err, halfbox.ErrUnknown) {
		return Order{}, &UnknownError{OrderNo: r.OrderNo, Err: err}
	}
	if err != nil {
		return Order{}, fmt.Errorf("cancel order %s: %w", r.OrderNo, err)
	}
	return next.order(), nil
}

// look reads the order that a cancel is about.
func (s *Service) look(ctx context.Context, orderNo string) (row, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return byNo(ctx, s.db.Read, orderNo)
}
