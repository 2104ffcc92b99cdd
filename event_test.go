package halfbox_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/halfbox/halfbox"
)

func TestEnvelopeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data, err := json.Marshal(map[string]any{"n": rapid.Int32().Draw(t, "n"), "s": rapid.String().Draw(t, "s")})
		require.NoError(t, err)
		ev := halfbox.Event{
			Type:             "order.created",
			Source:           "/halfbox/order",
			Subject:          rapid.StringMatching(`[A-Z0-9]{1,30}`).Draw(t, "subject"),
			Time:             time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "sec"), 123456000).UTC(),
			DataSchema:       "urn:halfbox:schema:order:1",
			AggregateVersion: rapid.Int64Range(1, 1<<62).Draw(t, "version"),
			PartitionKey:     rapid.StringMatching(`[A-Z0-9]{1,30}`).Draw(t, "key"),
			TraceParent:      rapid.SampledFrom([]string{"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}).Draw(t, "trace"),
			Data:             data,
		}
		at, err := halfbox.NewAttempt(halfbox.DeliveryTxmsg)
		require.NoError(t, err)
		body, err := halfbox.Encode(ev, at.MsgID)
		require.NoError(t, err)

		id, got, err := halfbox.Decode(body)
		require.NoError(t, err)
		require.Equal(t, at.MsgID, id)
		require.JSONEq(t, string(ev.Data), string(got.Data))
		got.Data = ev.Data
		require.Equal(t, ev, got)
	})
}

func TestEnvelopeIsCloudEventsJSON(t *testing.T) {
	body, err := halfbox.Encode(halfbox.Event{
		Type: "order.created", Source: "/halfbox/order", Subject: "A1", Time: time.Unix(1, 0), DataSchema: "urn:halfbox:schema:order:1",
		AggregateVersion: 1, PartitionKey: "A1", Data: json.RawMessage(`{"order_no":"A1"}`),
	}, "019b0000-0000-7000-8000-000000000000")
	require.NoError(t, err)
	require.JSONEq(t, `{"specversion":"1.0","id":"019b0000-0000-7000-8000-000000000000","source":"/halfbox/order",
		"type":"order.created","subject":"A1","time":"1970-01-01T00:00:01Z","dataschema":"urn:halfbox:schema:order:1",
		"datacontenttype":"application/json","aggregateversion":"1","partitionkey":"A1","data":{"order_no":"A1"}}`, string(body))
}

func TestEncodeRefusesIncompleteEvents(t *testing.T) {
	good := halfbox.Event{
		Type: "order.created", Source: "/x", Subject: "A1", Time: time.Now(), DataSchema: "urn:x:1", Data: json.RawMessage(`{}`),
	}
	_, err := halfbox.Encode(good, "id")
	require.NoError(t, err)
	for name, change := range map[string]func(*halfbox.Event){
		"no type": func(e *halfbox.Event) { e.Type = "" }, "no subject": func(e *halfbox.Event) { e.Subject = "" },
		"no source": func(e *halfbox.Event) { e.Source = "" }, "broken data": func(e *halfbox.Event) { e.Data = json.RawMessage(`{`) },
		"two keys": func(e *halfbox.Event) { e.Subject = "A1 A2" }, "separator": func(e *halfbox.Event) { e.Subject = "A1\x01TAGS" },
		"separator in the type": func(e *halfbox.Event) { e.Type = "a\x02b" }, "relative schema": func(e *halfbox.Event) { e.DataSchema = "1" },
		"tag expression":       func(e *halfbox.Event) { e.Type = "a||b" },
		"long type":            func(e *halfbox.Event) { e.Type = strings.Repeat("x", halfbox.MaxName+1) },
		"long subject":         func(e *halfbox.Event) { e.Subject = strings.Repeat("x", halfbox.MaxName+1) },
		"long partition key":   func(e *halfbox.Event) { e.PartitionKey = strings.Repeat("x", halfbox.MaxName+1) },
		"subject not UTF-8":    func(e *halfbox.Event) { e.Subject = "A1\xff" },
		"separator in a trace": func(e *halfbox.Event) { e.TraceParent = "00\x01" },
	} {
		bad := good
		change(&bad)
		_, err := halfbox.Encode(bad, "id")
		require.Error(t, err, name)
	}
}

// What RocketMQ's client and broker read themselves must not come from an event: each of these changes what becomes of
// a message, and the client would send all of them.
func TestReservedHeadersAreRefused(t *testing.T) {
	for _, name := range []string{
		"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRAN_MSG", "PGROUP", "REAL_TOPIC",
		"REAL_QID", "UNIQ_KEY", "KEYS", "TAGS", "WAIT", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
		"TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_PREPARED_QUEUE_OFFSET", "INNER_NUM", "DUP_INFO",
		"SHARDING_KEY", "__SHARDINGKEY", "__transactionId__", "POP_CK", "CLUSTER", "MSG_REGION", "TRACE_ON", "BUYER_ID", "TTL", "",
		"content-type", "traceparent", "__halfbox_warmup",
	} {
		require.True(t, halfbox.ReservedHeader(name), name)
		_, err := halfbox.Encode(withHeader(name, "1"), "id")
		require.ErrorContains(t, err, "reserved", name)
		require.ErrorContains(t, err, "small letters", "the error says what to do")
	}
	_, err := halfbox.Encode(withHeader("tenant", "blue"), "id")
	require.NoError(t, err)
}

func TestHeadersUnfitForTheWireAreRefused(t *testing.T) {
	for name, ev := range map[string]halfbox.Event{
		"separator in a value": withHeader("tenant", "a\x01b"), "property separator": withHeader("tenant", "a\x02DELAY\x013"),
		"separator in a name": withHeader("ten\x01ant", "a"), "empty value": withHeader("tenant", ""), "not UTF-8": withHeader("tenant", "\xff"),
		"space in a name": withHeader("the tenant", "a"), "too large": withHeader("tenant", strings.Repeat("x", halfbox.MaxProperties)),
	} {
		_, err := halfbox.Encode(ev, "id")
		require.Error(t, err, name)
	}
	used := len("order.created") + len("A1") + 6 + len("tenant") + 2
	_, err := halfbox.Encode(withHeader("tenant", strings.Repeat("x", halfbox.MaxProperties-used)), "id")
	require.NoError(t, err, "up to the limit")
	_, err = halfbox.Encode(withHeader("tenant", strings.Repeat("x", halfbox.MaxProperties-used+1)), "id")
	require.ErrorContains(t, err, "the limit is")
}

func withHeader(name, value string) halfbox.Event {
	return halfbox.Event{
		Type: "order.created", Source: "/x", Subject: "A1", Time: time.Now(), DataSchema: "urn:x:1", Data: json.RawMessage(`{}`),
		Headers: map[string]string{name: value},
	}
}

func TestDecodeRefusesForeignBodies(t *testing.T) {
	for _, body := range []string{``, `hello`, `{}`, `[]`, `null`, `{"specversion":"1.0","id":"a","source":"/x","type":"t","data":{}}`} {
		_, _, err := halfbox.Decode([]byte(body))
		require.ErrorIs(t, err, halfbox.ErrBadEnvelope, "body %q", body)
	}
}

func TestOutcomesKeepTheirCause(t *testing.T) {
	cause := errors.New("disk full")
	require.ErrorIs(t, halfbox.RolledBack(cause), cause)
	require.ErrorIs(t, halfbox.RolledBack(cause), halfbox.ErrRolledBack)
	require.ErrorIs(t, halfbox.Unknown(cause), cause)
	require.NotErrorIs(t, halfbox.Unknown(cause), halfbox.ErrRolledBack)
}
