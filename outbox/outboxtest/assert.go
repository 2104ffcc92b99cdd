package outboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/localtx"
	"github.com/halfbox/halfbox/outbox"
)

// Published is an event as it was published.
type Published struct {
	// Entry is the record, its payload and delivery state included.
	Entry outbox.Entry
	// Event is what a consumer decodes from the payload.
	Event halfbox.Event
}

// Matcher says what is wrong with an event, empty when nothing is.
type Matcher func(p Published) string

// Data matches an event whose data is the same JSON document, whatever the order of its names and its white space.
func Data(want string) Matcher {
	return func(p Published) string {
		var w, g any
		if err := json.Unmarshal([]byte(want), &w); err != nil {
			return fmt.Sprintf("the wanted data is not a JSON document: %v", err)
		}
		if err := json.Unmarshal(p.Event.Data, &g); err != nil {
			return fmt.Sprintf("data is not a JSON document: %v", err)
		}
		if !reflect.DeepEqual(w, g) {
			return fmt.Sprintf("data is\n\t%s\nnot\n\t%s", p.Event.Data, want)
		}
		return ""
	}
}

// DataField matches an event whose data has this value under a top-level name, compared as JSON.
func DataField(name string, want any) Matcher {
	return func(p Published) string {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(p.Event.Data, &fields); err != nil {
			return fmt.Sprintf("data is not a JSON object: %v", err)
		}
		got, ok := fields[name]
		if !ok {
			return fmt.Sprintf("data has no %q: %s", name, p.Event.Data)
		}
		text, err := json.Marshal(want)
		if err != nil {
			return fmt.Sprintf("the wanted value cannot be JSON: %v", err)
		}
		wrong := Data(string(text))(Published{Event: halfbox.Event{Data: got}})
		return strings.Replace(wrong, "data is", fmt.Sprintf("data's %q is", name), 1)
	}
}

// Sink matches an event for this sink.
func Sink(name string) Matcher {
	return func(p Published) string { return differs("sink", name, p.Entry.Sink) }
}

// Destination matches an event for this topic, queue or URL.
func Destination(name string) Matcher {
	return func(p Published) string { return differs("destination", name, p.Entry.Destination) }
}

// Key matches an event with this partition key.
func Key(key string) Matcher {
	return func(p Published) string { return differs("partition key", key, p.Entry.PartitionKey) }
}

// Where matches an event for which ok is true; what says what that is.
func Where(what string, ok func(p Published) bool) Matcher {
	return func(p Published) string {
		if ok(p) {
			return ""
		}
		return "not so: " + what
	}
}

func differs(name, want, got string) string {
	if want == got {
		return ""
	}
	return fmt.Sprintf("%s is %q, not %q", name, got, want)
}

// AssertPublished wants exactly one committed event of this type and business number (the event's Subject) that all
// matchers match, in whatever state its delivery is, and returns it.
func AssertPublished(t testing.TB, db *localtx.DB, eventType, bizNo string, matchers ...Matcher) Published {
	t.Helper()
	all := published(t, db, eventType, bizNo)
	var wrong []string
	var found []Published
	for _, p := range all {
		if w := mismatches(p, matchers); len(w) > 0 {
			wrong = append(wrong, fmt.Sprintf("message %s: %s", p.Entry.MsgID, strings.Join(w, "; ")))
			continue
		}
		found = append(found, p)
	}
	switch {
	case len(found) == 1:
		return found[0]
	case len(found) > 1:
		t.Fatalf("outboxtest: %s of %s was published %d times (sinks %v)", eventType, bizNo, len(found), sinks(found))
	case len(wrong) > 0:
		t.Fatalf("outboxtest: %s of %s was published, but not like this:\n%s", eventType, bizNo, strings.Join(wrong, "\n"))
	default:
		t.Fatalf("outboxtest: %s of %s was not published%s", eventType, bizNo, instead(t, db, bizNo))
	}
	return Published{}
}

// AssertNotPublished wants no committed event of this type and business number that all matchers match.
func AssertNotPublished(t testing.TB, db *localtx.DB, eventType, bizNo string, matchers ...Matcher) {
	t.Helper()
	for _, p := range published(t, db, eventType, bizNo) {
		if len(mismatches(p, matchers)) == 0 {
			t.Fatalf("outboxtest: %s of %s was published: message %s, %s, data %s", eventType, bizNo, p.Entry.MsgID, p.Entry.Status, p.Event.Data)
		}
	}
}

// AssertDelivered wants every event of this type and business number, at least one, to be delivered now: SUCCESS.
func AssertDelivered(t testing.TB, db *localtx.DB, eventType, bizNo string) {
	t.Helper()
	if missing := undelivered(t, db, eventType, bizNo); missing != "" {
		t.Fatalf("outboxtest: %s", missing)
	}
}

// awaitTime bounds AwaitDelivered and Await. It is long, because it passes in a test that fails and not in others.
const awaitTime = time.Minute

// AwaitDelivered is AssertDelivered after at most a minute. A dead letter fails it at once.
func AwaitDelivered(t testing.TB, db *localtx.DB, eventType, bizNo string) {
	t.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(awaitTime); ; <-poll.C {
		missing := undelivered(t, db, eventType, bizNo)
		switch {
		case missing == "":
			return
		case time.Now().After(end), strings.Contains(missing, string(outbox.StatusFail)):
			t.Fatalf("outboxtest: %s", missing)
			return
		}
	}
}

// undelivered says which event is not delivered, empty when all are.
func undelivered(t testing.TB, db *localtx.DB, eventType, bizNo string) string {
	t.Helper()
	all := published(t, db, eventType, bizNo)
	if len(all) == 0 {
		return fmt.Sprintf("%s of %s was not published%s", eventType, bizNo, instead(t, db, bizNo))
	}
	for _, p := range all {
		if p.Entry.Status != outbox.StatusSuccess {
			return fmt.Sprintf("%s of %s is not delivered: message %s for sink %s is %s, retries %d, last error %q",
				eventType, bizNo, p.Entry.MsgID, p.Entry.Sink, p.Entry.Status, p.Entry.RetryCount, p.Entry.LastError)
		}
	}
	return ""
}

// published are the committed events of a type and business number, with their payload.
func published(t testing.TB, db *localtx.DB, eventType, bizNo string) (all []Published) {
	t.Helper()
	entries, err := outbox.List(context.Background(), db, outbox.Filter{EventType: eventType, BizNo: bizNo, Limit: 1000})
	if err != nil {
		t.Fatalf("outboxtest: %v", err)
	}
	for _, e := range entries {
		whole, err := outbox.Get(context.Background(), db, e.MsgID)
		if err != nil {
			t.Fatalf("outboxtest: %v", err)
		}
		at := slices.IndexFunc(whole, func(w outbox.Entry) bool { return w.ID == e.ID })
		if at < 0 {
			t.Fatalf("outboxtest: the record of message %s vanished while it was read", e.MsgID)
		}
		msgID, ev, err := halfbox.Decode(whole[at].Payload)
		if err != nil {
			t.Fatalf("outboxtest: message %s: %v", e.MsgID, err)
		}
		if msgID != e.MsgID {
			t.Fatalf("outboxtest: message %s carries the id %s", e.MsgID, msgID)
		}
		all = append(all, Published{Entry: whole[at], Event: ev})
	}
	return all
}

func mismatches(p Published, matchers []Matcher) (wrong []string) {
	for _, m := range matchers {
		if w := m(p); w != "" {
			wrong = append(wrong, w)
		}
	}
	return wrong
}

func sinks(all []Published) (names []string) {
	for _, p := range all {
		names = append(names, p.Entry.Sink)
	}
	return names
}

// instead says what else was published for a business number.
func instead(t testing.TB, db *localtx.DB, bizNo string) string {
	t.Helper()
	entries, err := outbox.List(context.Background(), db, outbox.Filter{BizNo: bizNo, Limit: 20})
	if err != nil || len(entries) == 0 {
		return ""
	}
	var types []string
	for _, e := range entries {
		types = append(types, e.EventType)
	}
	return fmt.Sprintf("; of %s there is %s", bizNo, strings.Join(types, ", "))
}
