package halfbox_test

import (
	"encoding/json"
	"errors"
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
	} {
		bad := good
		change(&bad)
		_, err := halfbox.Encode(bad, "id")
		require.Error(t, err, name)
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
