package halfbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
)

// Delivery names the strategy that carries a message.
type Delivery string

// The strategies.
const (
	DeliveryTxmsg  Delivery = "txmsg"  // RocketMQ transactional message
	DeliveryOutbox Delivery = "outbox" // t_event_record, polled under leases
	DeliveryCDC    Delivery = "cdc"    // t_event_record, relayed from the binlog
)

// Event is one fact of the domain, complete: a consumer never has to query back.
type Event struct {
	// Type is the CloudEvents type, for example "order.created".
	Type string
	// Source is the CloudEvents source, a URI reference of the service that states the fact.
	Source string
	// Subject is the business number of the aggregate, for example the order number.
	// It is the RocketMQ KEYS property, so mqadmin and the dashboard find the message by it.
	Subject string
	// Time is when the fact happened, by the application's clock. It is sent in UTC.
	Time time.Time
	// DataSchema is the schema version of Data, an absolute URI such as "urn:halfbox:schema:order:1".
	DataSchema string
	// AggregateVersion is the aggregate's version after the fact; the first is 1.
	AggregateVersion int64
	// PartitionKey groups events that have to stay in order; usually the aggregate's id.
	PartitionKey string
	// TraceParent is the W3C trace context of the caller; empty when there is none.
	TraceParent string
	// Destination is the topic; empty means the publisher's own. It is not part of the envelope.
	Destination string
	// Headers are properties of the message for whoever routes or filters it; they are not part of the envelope, so a
	// message that is rebuilt from its row lacks them. A name needs a small letter, see ReservedHeader. Optional.
	Headers map[string]string
	// Data is the payload, a JSON document.
	Data json.RawMessage
}

// Attempt is one try to commit and deliver an event. Every half message and every outbox write has its own.
type Attempt struct {
	// MsgID is a UUIDv7 (36 characters) and the one id from end to end: UNIQ_KEY at the broker,
	// msg_id in every table, id of the envelope.
	MsgID    string
	Delivery Delivery
}

// NewAttempt returns an attempt with a new id.
func NewAttempt(d Delivery) (Attempt, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Attempt{}, fmt.Errorf("halfbox: make a message id: %w", err)
	}
	return Attempt{MsgID: id.String(), Delivery: d}, nil
}

// Receipt says which attempt committed.
type Receipt struct {
	Attempt
}

// The CloudEvents extension attributes of the envelope.
const (
	extAggregateVersion = "aggregateversion"
	extPartitionKey     = "partitionkey"
	extTraceParent      = "traceparent"
)

// ErrBadEnvelope is wrapped by Decode when a body is not an event of this project.
// Such a message can never be handled: it belongs to the dead letters.
var ErrBadEnvelope = errors.New("halfbox: not a valid event envelope")

// validate checks what every strategy and every sink can carry, so that an event that one takes is taken by its
// fallback too. Type and Subject become message properties: RocketMQ separates keys by spaces and tags by bars.
func (ev Event) validate() error {
	for _, f := range []struct{ name, value, not string }{
		{"type", ev.Type, "|"}, {"subject", ev.Subject, ""},
	} {
		bad := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(f.not, r) }
		if f.value == "" || strings.ContainsFunc(f.value, bad) {
			return fmt.Errorf("halfbox: %s %q of event is empty or holds a space, a bar or a control character", f.name, f.value)
		}
	}
	for _, f := range []struct{ name, value string }{{"type", ev.Type}, {"subject", ev.Subject}, {"partition key", ev.PartitionKey}} {
		if !utf8.ValidString(f.value) || utf8.RuneCountInString(f.value) > MaxName {
			return fmt.Errorf("halfbox: %s of event %.20q is longer than %d characters or not valid UTF-8", f.name, ev.Type, MaxName)
		}
	}
	if err := ev.validateHeaders(); err != nil {
		return err
	}
	if !json.Valid(ev.Data) {
		return fmt.Errorf("halfbox: data of event %s is not a JSON document", ev.Type)
	}
	return nil
}

// Encode returns the body of ev sent as message msgID: a CloudEvents 1.0 event in the JSON format. It refuses an
// event without Type, Source, Subject or a JSON document as Data, a Type or Subject with spaces or control
// characters, names longer than MaxName, and Headers that are reserved, unfit for the wire or too large.
func Encode(ev Event, msgID string) ([]byte, error) {
	if err := ev.validate(); err != nil {
		return nil, err
	}
	ce := cloudevents.New()
	ce.SetID(msgID)
	ce.SetType(ev.Type)
	ce.SetSource(ev.Source)
	ce.SetSubject(ev.Subject)
	ce.SetTime(ev.Time.UTC())
	ce.SetDataSchema(ev.DataSchema)
	ce.SetExtension(extAggregateVersion, strconv.FormatInt(ev.AggregateVersion, 10))
	ce.SetExtension(extPartitionKey, ev.PartitionKey)
	if ev.TraceParent != "" {
		ce.SetExtension(extTraceParent, ev.TraceParent)
	}
	// SetData would read the document once more, and json.Marshal the whole event: this runs for every order, and
	// validate has seen to the data.
	ce.SetDataContentType(cloudevents.ApplicationJSON)
	ce.DataEncoded = ev.Data
	if err := ce.Validate(); err != nil {
		return nil, fmt.Errorf("halfbox: encode event %s: %w", ev.Type, err)
	}
	body := bytes.NewBuffer(make([]byte, 0, 512+len(ev.Data)))
	if err := cloudevents.WriteJson(&ce, body); err != nil {
		return nil, fmt.Errorf("halfbox: encode event %s: %w", ev.Type, err)
	}
	return body.Bytes(), nil
}

// Decode reads a body made by Encode and returns its message id and its event.
// Any error wraps ErrBadEnvelope.
func Decode(body []byte) (msgID string, ev Event, err error) {
	ce := cloudevents.New()
	if err := json.Unmarshal(body, &ce); err != nil {
		return "", Event{}, fmt.Errorf("%w: %w", ErrBadEnvelope, err)
	}
	if err := ce.Validate(); err != nil {
		return "", Event{}, fmt.Errorf("%w: %w", ErrBadEnvelope, err)
	}
	if !json.Valid(ce.Data()) {
		return "", Event{}, fmt.Errorf("%w: data is not a JSON document", ErrBadEnvelope)
	}
	ext := ce.Extensions()
	var version int64
	if _, err := fmt.Sscanf(extString(ext, extAggregateVersion), "%d", &version); err != nil {
		return "", Event{}, fmt.Errorf("%w: %s: %w", ErrBadEnvelope, extAggregateVersion, err)
	}
	return ce.ID(), Event{
		Type:             ce.Type(),
		Source:           ce.Source(),
		Subject:          ce.Subject(),
		Time:             ce.Time(),
		DataSchema:       ce.DataSchema(),
		AggregateVersion: version,
		PartitionKey:     extString(ext, extPartitionKey),
		TraceParent:      extString(ext, extTraceParent),
		Data:             ce.Data(),
	}, nil
}

func extString(ext map[string]any, name string) string {
	v, ok := ext[name]
	if !ok {
		return ""
	}
	return fmt.Sprint(v)
}
