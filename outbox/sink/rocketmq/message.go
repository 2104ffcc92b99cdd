package rocketmq

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/outbox"
)

// maxProperties is the broker's limit; the client would write a longer string with its length cut to 16 bits.
const maxProperties = 32767

// message makes the client's message of a record. It is made anew for every send: the client leaves marks on it.
func message(r outbox.Record) (*primitive.Message, error) {
	m := primitive.NewMessage(r.Destination, r.Payload)
	size := 0
	set := func(name, value string) error {
		// The client never checks: these bytes separate properties on the wire, and an empty value is dropped.
		if value == "" || strings.ContainsAny(name+value, "\x01\x02") {
			return fmt.Errorf("property %q of message %s is empty or holds a separator", name, r.MsgID)
		}
		size += len(name) + len(value) + 2
		m.WithProperty(name, value)
		return nil
	}
	for name, value := range r.Headers {
		if !userProperty(name) || value == "" {
			continue
		}
		if err := set(name, value); err != nil {
			return nil, err
		}
	}
	err := errors.Join(
		set(primitive.PropertyUniqueClientMessageIdKeyIndex, r.MsgID),
		set(primitive.PropertyKeys, r.BizNo),
		set(primitive.PropertyTags, r.EventType),
	)
	if err == nil && size > maxProperties {
		err = fmt.Errorf("properties of message %s take %d bytes, the limit is %d", r.MsgID, size, maxProperties)
	}
	return m, err
}

// userProperty keeps headers of records from being taken for the broker's own properties: a header TRAN_MSG would make
// a half message of it. The writer refuses them, but a table can be written by anyone.
func userProperty(name string) bool {
	return name == outbox.HeaderContentType || name == outbox.HeaderTraceParent || !halfbox.ReservedHeader(name)
}
