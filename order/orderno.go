package order

import (
	"encoding/base32"
	"fmt"

	"github.com/google/uuid"
)

// newOrderNo returns a new order number: a UUIDv7 in Crockford's base 32 (26 characters, sorted by time, safe to
// read aloud). It never begins with "~", which marks a tombstone.
func newOrderNo() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make an order number: %w", err)
	}
	return base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding).EncodeToString(id[:]), nil
}
