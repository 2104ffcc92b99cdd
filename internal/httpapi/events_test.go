package httpapi_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/outbox"
)

// events serves the operator's endpoints over an outbox with two records.
func events(t *testing.T) (http.Handler, []string) {
	t.Helper()
	h, _, ids := eventsOf(t, "")
	return h, ids
}

func eventsOf(t *testing.T, token string) (http.Handler, *database.DB, []string) {
	t.Helper()
	db, err := database.OpenSQLite(filepath.Join(t.TempDir(), "order.db"), database.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.Migrate(t.Context(), outbox.Migrations()))
	w, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "main", Destination: "T"})
	require.NoError(t, err)
	var ids []string
	for _, no := range []string{"A1", "A2"} {
		receipt, err := w.PublishInTx(t.Context(), halfbox.Event{
			Type: "order.created", Source: "/x", Subject: no, Time: time.Now(), DataSchema: "urn:x:1", AggregateVersion: 1,
			PartitionKey: no, Data: json.RawMessage(`{"order_no":"` + no + `"}`),
		}, func(*gorm.DB, halfbox.Attempt) error { return nil })
		require.NoError(t, err)
		ids = append(ids, receipt.MsgID)
	}
	h, err := httpapi.Operator(httpapi.OperatorConfig{
		Gatherer: prometheus.NewRegistry(), Token: token, Mount: []httpapi.Routes{httpapi.EventRoutes(outboxOf{db}, zap.NewNop())},
	})
	require.NoError(t, err)
	return h, db, ids
}

type outboxOf struct{ db *database.DB }

func (o outboxOf) Stats(ctx context.Context) (outbox.Snapshot, error) { return outbox.Stats(ctx, o.db) }

func (o outboxOf) Search(ctx context.Context, f outbox.Filter) (outbox.Page, error) {
	return outbox.Search(ctx, o.db, f)
}

func (o outboxOf) Redrive(ctx context.Context, op outbox.Operation) (outbox.OperationResult, error) {
	return outbox.Redrive(ctx, o.db, op)
}

func (o outboxOf) PurgeDead(ctx context.Context, op outbox.Operation) (outbox.OperationResult, error) {
	return outbox.PurgeDead(ctx, o.db, op)
}

func (o outboxOf) Get(ctx context.Context, id string) ([]outbox.Entry, error) {
	return outbox.Get(ctx, o.db, id)
}

func (o outboxOf) BlockedKeys(ctx context.Context, sink, after string, limit int) ([]outbox.BlockedKey, error) {
	return outbox.BlockedKeys(ctx, o.db, cmp.Or(sink, "main"), after, limit)
}

func ask(t *testing.T, h http.Handler, path string) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	var body map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body), w.Body.String())
	return w.Code, body
}

func TestEventEndpoints(t *testing.T) {
	t.Parallel()
	h, ids := events(t)

	code, stats := ask(t, h, "/admin/v1/stats")
	require.Equal(t, http.StatusOK, code)
	sink := stats["sinks"].([]any)[0].(map[string]any)
	require.Equal(t, "main", sink["sink"])
	require.EqualValues(t, 2, sink["wait"])
	require.GreaterOrEqual(t, sink["oldest_unsent_seconds"], 0.0)

	code, list := ask(t, h, "/admin/v1/events?status=WAIT&sink=main&type=order.created&biz_no=A2")
	require.Equal(t, http.StatusOK, code)
	require.Len(t, list["events"], 1)
	found := list["events"].([]any)[0].(map[string]any)
	require.Equal(t, ids[1], found["msg_id"])
	require.NotContains(t, found, "payload", "a list shows no payloads")

	_, one := ask(t, h, "/admin/v1/events?limit=1")
	require.Len(t, one["events"], 1)
	_, two := ask(t, h, "/admin/v1/events?limit=1&after="+one["next"].(string))
	require.Len(t, two["events"], 1)
	require.NotEqual(t, one["events"], two["events"])
	_, old := ask(t, h, "/admin/v1/events?older_than=1h&key=A1&error=x")
	require.Empty(t, old["events"])
	_, none := ask(t, h, "/admin/v1/events?status=FAIL")
	require.Equal(t, []any{}, none["events"])

	code, shown := ask(t, h, "/admin/v1/events/"+ids[0])
	require.Equal(t, http.StatusOK, code)
	payload := shown["events"].([]any)[0].(map[string]any)["payload"].(map[string]any)
	require.Equal(t, ids[0], payload["id"], "the payload is shown as the JSON it is")
}

// TestBlockedKeysEndpoint lists the keys with dead letters page by page, and is no message of that id.
func TestBlockedKeysEndpoint(t *testing.T) {
	t.Parallel()
	h, db, ids := eventsOf(t, "")
	code, none := ask(t, h, "/admin/v1/events/blocked")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, map[string]any{"keys": []any{}}, none)
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL', last_error = 'refused: no'").Error)
	_, one := ask(t, h, "/admin/v1/events/blocked?sink=main&limit=1")
	key := one["keys"].([]any)[0].(map[string]any)
	require.Equal(t, map[string]any{
		"partition_key": "A1", "aggregate_version": 1.0, "msg_id": ids[0], "event_type": "order.created", "dead_letters": 1.0, "waiting": 0.0,
		"last_error": "refused: no",
	}, key)
	_, two := ask(t, h, "/admin/v1/events/blocked?limit=2&after="+one["next"].(string))
	require.Len(t, two["keys"], 1)
	require.Equal(t, "A2", two["keys"].([]any)[0].(map[string]any)["partition_key"])
	require.NotContains(t, two, "next")
	_, other := ask(t, h, "/admin/v1/events/blocked?sink=other")
	require.Empty(t, other["keys"])
}

func TestEventEndpointsRefuse(t *testing.T) {
	t.Parallel()
	h, _ := events(t)
	for path, status := range map[string]int{
		"/admin/v1/events?status=LOST":             http.StatusBadRequest,
		"/admin/v1/events?limit=0":                 http.StatusBadRequest,
		"/admin/v1/events?limit=x":                 http.StatusBadRequest,
		"/admin/v1/events?older_than=soon":         http.StatusBadRequest,
		"/admin/v1/events?after=x":                 http.StatusBadRequest,
		"/admin/v1/events?sinks=main":              http.StatusBadRequest,
		"/admin/v1/events?status=WAIT&status=FAIL": http.StatusBadRequest,
		"/admin/v1/events/blocked?limit=0":         http.StatusBadRequest,
		"/admin/v1/events/blocked?key=A1":          http.StatusBadRequest,
		"/admin/v1/events/nobody":                  http.StatusNotFound,
	} {
		code, body := ask(t, h, path)
		require.Equal(t, status, code, path)
		require.NotEmpty(t, body["type"], path)
	}
}
