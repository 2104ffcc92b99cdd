package order

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/halfbox/halfbox"
)

// The limits of a request.
const (
	// MaxAmountCents is one billion in the currency's unit: below it points and sums stay far from overflow.
	MaxAmountCents = 100_000_000_000
	// MaxIdempotencyKey is the longest key in bytes.
	MaxIdempotencyKey = 255
)

// CreateRequest asks for a new order.
type CreateRequest struct {
	UserID      int64
	AmountCents int64
	// Delivery chooses the strategy; empty means the service's default.
	Delivery halfbox.Delivery
	// IdempotencyKey makes the request repeatable for this user; empty means every request is a new order.
	// Visible ASCII, at most MaxIdempotencyKey bytes.
	IdempotencyKey string
}

// CancelRequest asks for the cancellation of an order.
type CancelRequest struct {
	OrderNo string
	// Delivery chooses the strategy; empty means the service's default. It need not be the order's own.
	Delivery halfbox.Delivery
}

func (s *Service) validate(r CreateRequest) error {
	switch {
	case r.UserID <= 0:
		return &InvalidError{"user_id", "must be a positive number"}
	case r.AmountCents <= 0:
		return &InvalidError{"amount_cents", "must be a positive number of cents"}
	case r.AmountCents > MaxAmountCents:
		return &InvalidError{"amount_cents", fmt.Sprintf("must be at most %d", MaxAmountCents)}
	case len(r.IdempotencyKey) > MaxIdempotencyKey:
		return &InvalidError{"Idempotency-Key", fmt.Sprintf("must be at most %d bytes", MaxIdempotencyKey)}
	}
	for _, c := range []byte(r.IdempotencyKey) {
		if c < 0x21 || c > 0x7e {
			return &InvalidError{"Idempotency-Key", "must be visible ASCII without spaces"}
		}
	}
	return s.validateDelivery(r.Delivery)
}

func (s *Service) validateDelivery(d halfbox.Delivery) error {
	if d != "" && s.publishers[d] == nil {
		return &InvalidError{"delivery", fmt.Sprintf("must be one of %v", s.Deliveries())}
	}
	return nil
}

// hash identifies the request's content, so that a key used for something else is noticed.
func (r CreateRequest) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "create\x00%d\x00%d\x00%s", r.UserID, r.AmountCents, r.Delivery))
	return hex.EncodeToString(sum[:])
}
