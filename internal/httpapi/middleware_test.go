package httpapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

type observedEntry = observer.LoggedEntry

func TestPanicInHandler(t *testing.T) {
	f := newStubbed(t, getFunc(func(context.Context, string) (order.Order, error) { panic("secret of the inside") }))
	w := call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/orders/ORDER1", nil))
	require.NotContains(t, w.Body.String(), "secret")
	requireProblem(t, w, http.StatusInternalServerError, "internal")

	entries := f.logs.FilterMessage("handler panicked").All()
	require.Len(t, entries, 1)
	require.Equal(t, "secret of the inside", entries[0].ContextMap()["panic"])
	require.Contains(t, entries[0].ContextMap()["stack"], "middleware_test.go")
	access := f.logs.FilterMessage("request").All()
	require.Len(t, access, 1)
	require.EqualValues(t, 500, access[0].ContextMap()["status"])
}

// When the answer has begun, the client must not take it for a whole one.
func TestPanicAfterTheAnswerBegan(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	h, err := Operator(OperatorConfig{Gatherer: prometheus.NewRegistry(), Logger: zap.New(core), Mount: []Routes{func(r gin.IRouter) {
		r.GET("/half", func(c *gin.Context) {
			c.String(http.StatusOK, "half")
			c.Writer.Flush()
			panic("late")
		})
		r.GET("/abort", func(*gin.Context) { panic(http.ErrAbortHandler) })
	}}})
	require.NoError(t, err)
	srv := httptest.NewServer(h)
	defer srv.Close()
	res, err := srv.Client().Get(srv.URL + "/half")
	require.NoError(t, err)
	_, err = io.ReadAll(res.Body)
	require.Error(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 1, logs.FilterMessage("handler panicked").Len())

	_, err = srv.Client().Get(srv.URL + "/abort") //nolint:bodyclose // there is no answer
	require.Error(t, err)
	require.Equal(t, 1, logs.FilterMessage("handler panicked").Len(), "this one is meant")
}

func TestRequestID(t *testing.T) {
	f := newStubbed(t, getFunc(nil))
	for id, kept := range map[string]bool{
		"checkout-7f3a": true, "A_b.c:9": true, strings.Repeat("x", 128): true,
		"": false, strings.Repeat("x", 129): false, "a b": false, "a\"b": false, "é": false,
	} {
		w := call(t, f, with(httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil), "X-Request-Id", id))
		got := w.Header().Get("X-Request-Id")
		require.Equal(t, kept, got == id, "%q -> %q", id, got)
		require.True(t, isRequestID(got))
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	f := newStubbed(t, getFunc(func(context.Context, string) (order.Order, error) { return order.Order{}, order.ErrNotFound }))
	for _, path := range []string{"/", "/api", "/api/v1/orders/", "/api/v1/orders/A/B", "/API/v1/orders", "//api/v1/orders", "/metrics", "/healthz", "/debug/pprof/"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.Path = path
		p := requireProblem(t, call(t, f, r), http.StatusNotFound, "not-found")
		require.Equal(t, path, p.Instance)
	}
	for _, tc := range []struct{ method, path, allow string }{
		{"GET", "/api/v1/orders", "POST, OPTIONS"},
		{"HEAD", "/api/v1/orders", "POST, OPTIONS"},
		{"DELETE", "/api/v1/orders/A", "GET, HEAD, OPTIONS"},
		{"POST", "/api/v1/users/7/points", "GET, HEAD, OPTIONS"},
		{"BREW", "/openapi.yaml", "GET, HEAD, OPTIONS"},
	} {
		w := call(t, f, httptest.NewRequest(tc.method, tc.path, nil))
		requireProblem(t, w, http.StatusMethodNotAllowed, "method-not-allowed")
		require.Equal(t, tc.allow, w.Header().Get("Allow"), tc.path)

		w = httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(http.MethodOptions, tc.path, nil))
		require.Equal(t, http.StatusNoContent, w.Code)
		require.Equal(t, tc.allow, w.Header().Get("Allow"))
		require.Zero(t, w.Body.Len())
	}
	requireProblem(t, call(t, f, httptest.NewRequest(http.MethodOptions, "/nowhere", nil)), http.StatusNotFound, "not-found")
}

// HEAD answers as GET does, without the body.
func TestHead(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	location := call(t, f, post(goodBody)).Header().Get("Location")
	srv := httptest.NewServer(f)
	defer srv.Close()
	for path, status := range map[string]int{location: 200, "/api/v1/orders/NONE": 404, "/api/v1/users/7/points": 200, "/openapi.yaml": 200} {
		get, err := srv.Client().Get(srv.URL + path)
		require.NoError(t, err)
		body, err := io.ReadAll(get.Body)
		require.NoError(t, err)
		require.NoError(t, get.Body.Close())
		head, err := srv.Client().Head(srv.URL + path)
		require.NoError(t, err)
		none, err := io.ReadAll(head.Body)
		require.NoError(t, err)
		require.NoError(t, head.Body.Close())
		require.Equal(t, status, get.StatusCode)
		require.Equal(t, status, head.StatusCode)
		require.NotEmpty(t, body)
		require.Empty(t, none)
		require.Equal(t, get.Header.Get("Content-Type"), head.Header.Get("Content-Type"))
	}
}

// A client that names another address in a header is not believed.
func TestAccessLog(t *testing.T) {
	f := newStubbed(t, getFunc(func(context.Context, string) (order.Order, error) { return order.Order{}, order.ErrNotFound }))
	call(t, f, with(httptest.NewRequest(http.MethodGet, "/api/v1/orders/A?token=secret", nil),
		"X-Forwarded-For", "6.6.6.6", "X-Real-Ip", "6.6.6.6", "X-Request-Id", "r-1"))
	entries := f.logs.FilterMessage("request").All()
	require.Len(t, entries, 1)
	got := entries[0].ContextMap()
	delete(got, "duration")
	delete(got, "bytes")
	require.Equal(t, map[string]any{
		"request_id": "r-1", "method": "GET", "path": "/api/v1/orders/A", "route": "/api/v1/orders/:order_no",
		"status": int64(404), "remote": "192.0.2.1",
	}, got)
}

func TestMetrics(t *testing.T) {
	f := newStubbed(t, getFunc(func(context.Context, string) (order.Order, error) { return order.Order{}, order.ErrNotFound }))
	for _, r := range []*http.Request{
		httptest.NewRequest(http.MethodGet, "/api/v1/orders/A", nil),
		httptest.NewRequest(http.MethodGet, "/api/v1/orders/B", nil),
		httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil),
		httptest.NewRequest(http.MethodGet, "/nowhere", nil),
		httptest.NewRequest("BREW", "/nowhere", nil),
	} {
		f.ServeHTTP(httptest.NewRecorder(), r)
	}
	families, err := f.reg.Gather()
	require.NoError(t, err)
	counts := map[string]uint64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() { // sorted by name: method, route, status
				labels = append(labels, l.GetValue())
			}
			if h := m.GetHistogram(); h != nil {
				counts[strings.Join(labels, " ")] = h.GetSampleCount()
			}
		}
	}
	require.Equal(t, map[string]uint64{
		"GET /api/v1/orders/:order_no 4xx": 2,
		"GET /openapi.yaml 2xx":            1,
		"GET unmatched 4xx":                1,
		"other unmatched 4xx":              1,
	}, counts)
	require.NoError(t, testutil.GatherAndCompare(f.reg, strings.NewReader(`
# HELP halfbox_http_requests_in_flight Requests of the public API that are being answered.
# TYPE halfbox_http_requests_in_flight gauge
halfbox_http_requests_in_flight 0
`), "halfbox_http_requests_in_flight"))
	problems, err := testutil.GatherAndLint(f.reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}
