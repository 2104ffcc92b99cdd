package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/outbox"
)

func postTo(t *testing.T, h http.Handler, path, body string, headers ...string) (int, map[string]any) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var got map[string]any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got), w.Body.String())
	return w.Code, got
}

func kill(t *testing.T, db *database.DB) {
	t.Helper()
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL', last_error = 'refused: no such topic'").Error)
}

func statusOf(t *testing.T, db *database.DB, msgID string) outbox.Status {
	t.Helper()
	got, err := outbox.Get(t.Context(), db, msgID)
	require.NoError(t, err)
	return got[0].Status
}

func TestRedriveEndpoint(t *testing.T) {
	t.Parallel()
	h, db, ids := eventsOf(t, "")
	kill(t, db)
	code, dry := postTo(t, h, "/admin/v1/events/redrive", `{"error":"TOPIC","dry_run":true}`)
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 2, dry["matched"])
	require.EqualValues(t, 0, dry["changed"])
	require.Len(t, dry["events"], 2)
	require.Equal(t, outbox.StatusFail, statusOf(t, db, ids[0]))

	code, one := postTo(t, h, "/admin/v1/events/redrive", `{"msg_id":"`+ids[0]+`","sink":"main","reason":"made the topic","actor":"ann"}`)
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 1, one["changed"])
	require.Equal(t, outbox.StatusWait, statusOf(t, db, ids[0]))
	require.Equal(t, outbox.StatusFail, statusOf(t, db, ids[1]))

	code, all := postTo(t, h, "/admin/v1/events/redrive", `{"all":true,"limit":1,"reason":"made the topic"}`)
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 1, all["changed"])
	for i, actor := range []string{"ann", "admin api, 192.0.2.1"} {
		audits, err := outbox.AuditsOf(t.Context(), db, ids[i])
		require.NoError(t, err)
		require.Len(t, audits, 1)
		require.Equal(t, actor, audits[0].Actor)
	}
}

func TestPurgeEndpointWantsConfirmation(t *testing.T) {
	t.Parallel()
	h, db, ids := eventsOf(t, "")
	kill(t, db)
	code, p := postTo(t, h, "/admin/v1/events/purge", `{"biz_no":"A1","reason":"test data"}`)
	require.Equal(t, http.StatusBadRequest, code)
	require.Equal(t, "confirm", p["field"])
	code, gone := postTo(t, h, "/admin/v1/events/purge", `{"biz_no":"A1","reason":"test data","confirm":true}`)
	require.Equal(t, http.StatusOK, code)
	require.EqualValues(t, 1, gone["changed"])
	_, err := outbox.Get(t.Context(), db, ids[0])
	require.ErrorIs(t, err, outbox.ErrNotFound)
	require.Equal(t, outbox.StatusFail, statusOf(t, db, ids[1]))
}

// TestOperationsAreProtected by the token and against other sites, and refuse what is not clear.
func TestOperationsAreProtected(t *testing.T) {
	t.Parallel()
	h, db, ids := eventsOf(t, "secret")
	kill(t, db)
	const good, bearer = `{"all":true,"reason":"x","confirm":true}`, "Bearer secret"
	for _, path := range []string{"/admin/v1/events/redrive", "/admin/v1/events/purge"} {
		code, _ := postTo(t, h, path, good)
		require.Equal(t, http.StatusUnauthorized, code)
		code, _ = postTo(t, h, path, good, "Authorization", bearer, "Sec-Fetch-Site", "cross-site")
		require.Equal(t, http.StatusForbidden, code)
		code, _ = postTo(t, h, path, good, "Authorization", bearer, "Content-Type", "text/plain")
		require.Equal(t, http.StatusUnsupportedMediaType, code)
		for _, body := range []string{
			``, `[]`, `{}`, `{"reason":"x","confirm":true}`, `{"all":true,"confirm":true}`, `{"all":true,"sink":"main","reason":"x","confirm":true}`,
			`{"sinks":"main","reason":"x","confirm":true}`, `{"all":true,"reason":"x","confirm":true} {}`, `{"all":true,"reason":"x","limit":10001,"confirm":true}`,
			`{"all":true,"reason":"x","rate":1,"confirm":true}`, `{"all":true,"reason":"x","older_than":"soon","confirm":true}`,
			`{"all":true,"reason":" ","confirm":true}`, `{"all":true,"reason":"x","limit":-1,"confirm":true}`,
		} {
			code, p := postTo(t, h, path, body, "Authorization", bearer)
			require.Equal(t, http.StatusBadRequest, code, body)
			require.Equal(t, "/problems/invalid-request", p["type"], body)
		}
		require.Equal(t, outbox.StatusFail, statusOf(t, db, ids[0]))
		code, res := postTo(t, h, path, good, "Authorization", bearer)
		require.Equal(t, http.StatusOK, code)
		require.EqualValues(t, 2, res["changed"])
		require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
		h, db, ids = eventsOf(t, "secret")
		kill(t, db)
	}
}
