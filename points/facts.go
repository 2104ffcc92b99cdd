package points

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/halfbox/halfbox"
)

// The messages this consumer understands. It states them itself: the contract is the wire, not a shared type.
const (
	eventOrderCreated   = "order.created"
	eventOrderCancelled = "order.cancelled"
	orderSchema         = "urn:halfbox:schema:order:1"

	// maxAmountCents is the largest amount of an order: with it no balance can overflow.
	maxAmountCents = 100_000_000_000
	// The widths of the ledger's columns, which hold ASCII.
	maxMsgID   = 80
	maxOrderNo = 64
)

// facts is what an order event says.
type facts struct {
	OrderNo     string `json:"order_no"`
	UserID      int64  `json:"user_id"`
	AmountCents int64  `json:"amount_cents"`

	typ     string
	version int64
}

// decodeFacts reads an order event. An error means that the message can never be handled.
func decodeFacts(body []byte) (msgID string, f facts, err error) {
	msgID, ev, err := halfbox.Decode(body)
	if err != nil {
		return "", facts{}, err
	}
	if ev.DataSchema != orderSchema {
		return "", facts{}, fmt.Errorf("unknown schema %q, this consumer knows %q", ev.DataSchema, orderSchema)
	}
	if ev.Type != eventOrderCreated && ev.Type != eventOrderCancelled {
		return "", facts{}, fmt.Errorf("unknown event type %q", ev.Type)
	}
	if err := json.Unmarshal(ev.Data, &f); err != nil {
		return "", facts{}, fmt.Errorf("data of %s: %w", ev.Type, err)
	}
	f.typ, f.version = ev.Type, ev.AggregateVersion
	switch {
	case !fits(msgID, maxMsgID):
		return "", facts{}, fmt.Errorf("id is not 1 to %d characters of visible ASCII", maxMsgID)
	case strings.HasPrefix(msgID, placeholderPrefix):
		return "", facts{}, fmt.Errorf("id begins with %q, which is kept for placeholders", placeholderPrefix)
	case !fits(f.OrderNo, maxOrderNo):
		return "", facts{}, fmt.Errorf("data of %s: order_no is not 1 to %d characters of visible ASCII", ev.Type, maxOrderNo)
	case f.UserID <= 0:
		return "", facts{}, fmt.Errorf("data of %s: user_id %d is not positive", ev.Type, f.UserID)
	case f.AmountCents < 0 || f.AmountCents > maxAmountCents:
		return "", facts{}, fmt.Errorf("data of %s: amount_cents %d is not in 0..%d", ev.Type, f.AmountCents, maxAmountCents)
	}
	return msgID, f, nil
}

// fits reports whether the database can keep s: a value it refuses would be tried again for ever.
func fits(s string, width int) bool {
	return s != "" && len(s) <= width && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// hash tells whether two messages state the same facts. Their bytes may differ: a body can be rebuilt.
func (f facts) hash() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %d %d", f.typ, f.OrderNo, f.UserID, f.AmountCents, f.version))
	return hex.EncodeToString(sum[:])
}

// recordType is the kind of record that the event is booked as.
func (f facts) recordType() RecordType {
	if f.typ == eventOrderCancelled {
		return Reverse
	}
	return Earn
}

// earned is the points of an order: one for each full hundred cents.
func (f facts) earned() int64 { return f.AmountCents / 100 }
