package outbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/halfbox/halfbox"
)

// Status is the state of an event record; doc.go shows the transitions.
type Status string

// The states.
const (
	StatusWait    Status = "WAIT"    // due at next_retry_time
	StatusSending Status = "SENDING" // claimed by claim_owner until lease_until
	StatusSuccess Status = "SUCCESS" // the sink confirmed it
	StatusFail    Status = "FAIL"    // dead letter
)

// Statuses lists the states in the order in which a record meets them.
func Statuses() []Status { return []Status{StatusWait, StatusSending, StatusSuccess, StatusFail} }

// Record is what a Sink sends: one event record without its delivery state.
type Record struct {
	MsgID            string // the message's one id from end to end
	EventType        string
	BizNo            string // business number, for example the order number
	Destination      string // topic, queue or URL
	PartitionKey     string
	AggregateVersion int64
	Payload          []byte            // the very bytes to send; not to be modified
	Headers          map[string]string // not to be modified
}

// Header names that the writer sets.
const (
	HeaderContentType = halfbox.HeaderContentType
	HeaderTraceParent = halfbox.HeaderTraceParent
)

// Widths of the columns, in characters.
const (
	maxMsgID       = 64
	maxSink        = 64
	maxName        = halfbox.MaxName // event_type, biz_no, aggregate_id, partition_key
	maxDestination = 255
)

// ErrInvalidEvent means that an event can never be written: a field is missing or too long.
var ErrInvalidEvent = errors.New("outbox: invalid event")

// ErrTooLarge means that the encoded event is larger than WriterConfig.MaxPayload.
var ErrTooLarge = errors.New("outbox: payload too large")

// newRecord is an event record as it is inserted.
type newRecord struct {
	Record
	sink        string
	aggregateID string
	headers     string
	delivery    halfbox.Delivery
	createdAt   time.Time
	delay       time.Duration // until it is due
}

func (r newRecord) validate(maxPayload int) error {
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"msg_id", r.MsgID, maxMsgID},
		{"event type", r.EventType, maxName},
		{"subject", r.BizNo, maxName},
		{"aggregate id", r.aggregateID, maxName},
		{"partition key", r.PartitionKey, maxName},
		{"destination", r.Destination, maxDestination},
	} {
		switch {
		case f.value == "":
			return fmt.Errorf("%w: %s is empty", ErrInvalidEvent, f.name)
		case !utf8.ValidString(f.value):
			return fmt.Errorf("%w: %s is not valid UTF-8", ErrInvalidEvent, f.name)
		case utf8.RuneCountInString(f.value) > f.limit:
			return fmt.Errorf("%w: %s is longer than %d characters", ErrInvalidEvent, f.name, f.limit)
		}
	}
	if len(r.Payload) > maxPayload {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(r.Payload), maxPayload)
	}
	return nil
}

func encodeHeaders(h map[string]string) (string, error) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if !utf8.ValidString(name) || !utf8.ValidString(h[name]) {
			return "", fmt.Errorf("%w: header %q is not valid UTF-8", ErrInvalidEvent, name)
		}
	}
	b, err := json.Marshal(h)
	if err != nil {
		return "", fmt.Errorf("outbox: encode headers: %w", err)
	}
	return string(b), nil
}
