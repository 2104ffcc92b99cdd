package txmsg_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/order"
)

// orderEvent is an order.created event of an order that is in no table.
func orderEvent(t testing.TB) halfbox.Event {
	t.Helper()
	no := uuid.NewString()
	return halfbox.Event{
		Type: order.EventCreated, Source: order.EventSource, Subject: no, Time: time.Now(), DataSchema: order.EventSchema,
		AggregateVersion: 1, PartitionKey: no, Data: json.RawMessage(`{}`),
	}
}

// failing is a local transaction that fails.
func failing(*gorm.DB, halfbox.Attempt) error { return errors.New("changed my mind") }
