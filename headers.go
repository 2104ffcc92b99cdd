package halfbox

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what every strategy and every sink can carry.
const (
	// MaxName is the longest Type, Subject and PartitionKey, in characters: what the columns of t_event_record hold.
	MaxName = 128
	// MaxProperties is the largest sum of Type, Subject, TraceParent and Headers, in bytes, with 2 for each of them.
	// RocketMQ counts the properties of a message in 16 bits: more than 32,767 bytes cannot be stored, and the client
	// would cut the length. The rest is for what strategy, client and broker add.
	MaxProperties = 30 << 10
)

// Headers that the strategies set themselves.
const (
	HeaderContentType = "content-type"
	HeaderTraceParent = "traceparent"
	// ContentType is the value of HeaderContentType.
	ContentType = "application/cloudevents+json"
)

// ReservedHeader tells whether a name cannot be a header of an event: RocketMQ's own properties decide what becomes of
// a message (DELAY would lose a half message's topic, TRAN_MSG would make a half message of a relayed one). Their
// names hold no small letters, or begin with two underscores.
func ReservedHeader(name string) bool {
	return name == HeaderContentType || name == HeaderTraceParent || strings.HasPrefix(name, "__") ||
		!strings.ContainsFunc(name, func(r rune) bool { return r >= 'a' && r <= 'z' })
}

// validateHeaders checks what becomes a message property. RocketMQ separates properties by control characters, and its
// client neither checks them nor keeps an empty value.
func (ev Event) validateHeaders() error {
	size := len(ev.Type) + len(ev.Subject) + len(ev.TraceParent) + 3*2
	for name, value := range ev.Headers {
		switch {
		case ReservedHeader(name):
			return fmt.Errorf("halfbox: header %q of event %s is reserved: choose a name with small letters that does not begin with two underscores", name, ev.Type)
		case !validHeader(name) || strings.ContainsFunc(name, unicode.IsSpace):
			return fmt.Errorf("halfbox: name of header %q of event %s holds a space, a control character or bytes that are not UTF-8", name, ev.Type)
		case value == "" || !validHeader(value):
			return fmt.Errorf("halfbox: header %q of event %s is empty or holds a control character or bytes that are not UTF-8", name, ev.Type)
		}
		size += len(name) + len(value) + 2
	}
	if !validHeader(ev.TraceParent) {
		return fmt.Errorf("halfbox: trace context of event %s holds a control character", ev.Type)
	}
	if size > MaxProperties {
		return fmt.Errorf("halfbox: type, subject and headers of event %s take %d bytes, the limit is %d", ev.Type, size, MaxProperties)
	}
	return nil
}

func validHeader(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
