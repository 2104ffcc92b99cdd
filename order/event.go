package order

import (
	"encoding/json"

	"github.com/halfbox/halfbox"
)

// The events of this domain.
const (
	// EventCreated is the type of the event that a created order sends.
	EventCreated = "order.created"
	// EventCancelled is the type of the event that a cancelled order sends.
	EventCancelled = "order.cancelled"
	// EventSource is the CloudEvents source of every event of this domain.
	EventSource = "/halfbox/order"
	// EventSchema is the version of the data that these events carry.
	EventSchema = "urn:halfbox:schema:order:1"
)

// eventData is the data of every event of this domain: the complete facts.
type eventData struct {
	OrderNo     string `json:"order_no"`
	UserID      int64  `json:"user_id"`
	AmountCents int64  `json:"amount_cents"`
}

// event states a fact about o, whose version is already that after the fact.
func event(typ string, o Order) (halfbox.Event, error) {
	data, err := json.Marshal(eventData{OrderNo: o.OrderNo, UserID: o.UserID, AmountCents: o.AmountCents})
	if err != nil {
		return halfbox.Event{}, err
	}
	return halfbox.Event{
		Type:             typ,
		Source:           EventSource,
		Subject:          o.OrderNo,
		Time:             o.UpdatedAt,
		DataSchema:       EventSchema,
		AggregateVersion: o.Version,
		PartitionKey:     o.OrderNo,
		Data:             data,
	}, nil
}
