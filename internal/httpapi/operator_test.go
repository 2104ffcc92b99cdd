package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func newOperator(t *testing.T, cfg OperatorConfig) http.Handler {
	t.Helper()
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.NewRegistry()
	}
	h, err := Operator(cfg)
	require.NoError(t, err)
	return h
}

func ask(h http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, with(httptest.NewRequest(method, path, nil), headers...))
	return w
}

func ok(context.Context) error { return nil }

func TestHealthz(t *testing.T) {
	h := newOperator(t, OperatorConfig{Checks: []Check{{"broker", func(context.Context) error { return errors.New("down") }}}})
	w := ask(h, http.MethodGet, "/healthz")
	require.Equal(t, http.StatusOK, w.Code, "alive, whatever it depends on")
	require.Equal(t, "ok", w.Body.String())
	require.Equal(t, http.StatusOK, ask(h, http.MethodHead, "/healthz").Code)
}

func TestReadyz(t *testing.T) {
	down := func(context.Context) error { return errors.New("no route to broker") }
	for _, tc := range []struct {
		name   string
		checks []Check
		status int
		body   string
	}{
		{"no checks", nil, 200, `{"ready":true,"checks":{}}`},
		{"all hold", []Check{{"broker", ok}, {"database", ok}}, 200, `{"ready":true,"checks":{"broker":"ok","database":"ok"}}`},
		{"one does not", []Check{{"broker", down}, {"database", ok}}, 503, `{"ready":false,"checks":{"broker":"not ready: no route to broker","database":"ok"}}`},
		{"one is done without", []Check{{"broker", func(ctx context.Context) error { return Degraded(down(ctx)) }}, {"database", ok}}, 200, `{"ready":true,"checks":{"broker":"degraded: no route to broker","database":"ok"}}`},
		{"one is done without, one fails", []Check{{"broker", func(ctx context.Context) error { return Degraded(down(ctx)) }}, {"database", down}}, 503, `{"ready":false,"checks":{"broker":"degraded: no route to broker","database":"not ready: no route to broker"}}`},
		{"one is not degraded after all", []Check{{"broker", func(context.Context) error { return Degraded(nil) }}}, 200, `{"ready":true,"checks":{"broker":"ok"}}`},
		{"one says ok in its error", []Check{{"broker", func(context.Context) error { return errors.New("ok") }}}, 503, `{"ready":false,"checks":{"broker":"not ready: ok"}}`},
		{"one panics", []Check{{"broker", func(context.Context) error { panic("boom") }}}, 503, `{"ready":false,"checks":{"broker":"check panicked: boom"}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := ask(newOperator(t, OperatorConfig{Checks: tc.checks}), http.MethodGet, "/readyz")
			require.Equal(t, tc.status, w.Code)
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			require.JSONEq(t, tc.body, w.Body.String())
		})
	}
}

// Two checks that hang take one timeout together, not two.
func TestReadyzTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		h := newOperator(t, OperatorConfig{Checks: []Check{{"broker", hang}, {"database", hang}}})
		start := time.Now()
		require.Equal(t, http.StatusServiceUnavailable, ask(h, http.MethodGet, "/readyz").Code)
		require.Equal(t, defaultReadyTimeout, time.Since(start))
	})
}

func TestMetricsEndpoint(t *testing.T) {
	reg := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "halfbox_test_total", Help: "A test."})
	reg.MustRegister(counter)
	counter.Add(3)
	w := ask(newOperator(t, OperatorConfig{Gatherer: reg}), http.MethodGet, "/metrics")
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "halfbox_test_total 3\n")
}

func TestPprof(t *testing.T) {
	h := newOperator(t, OperatorConfig{})
	for path, want := range map[string]string{
		"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile:",
		"/debug/pprof/cmdline": "httpapi", "/debug/pprof/symbol": "num_symbols",
	} {
		w := ask(h, http.MethodGet, path)
		require.Equal(t, http.StatusOK, w.Code, path)
		require.Contains(t, w.Body.String(), want, path)
	}
	w := ask(h, http.MethodGet, "/debug/pprof")
	require.Equal(t, http.StatusMovedPermanently, w.Code)
	require.Equal(t, "/debug/pprof/", w.Header().Get("Location"))
	require.Equal(t, http.StatusNotFound, ask(h, http.MethodGet, "/debug/pprof/nosuchprofile").Code)
}

// A profile may take longer than the server's write timeout.
func TestProfileOutlastsWriteTimeout(t *testing.T) {
	h := newOperator(t, OperatorConfig{})
	srv := httptest.NewUnstartedServer(h)
	srv.Config = NewServer(h)
	srv.Config.WriteTimeout = 100 * time.Millisecond
	srv.Start()
	defer srv.Close()
	res, err := srv.Client().Get(srv.URL + "/debug/pprof/trace?seconds=0.3")
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusOK, res.StatusCode)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NotEmpty(t, body)
}

func TestToken(t *testing.T) {
	const token = "s3cret-token"
	h := newOperator(t, OperatorConfig{Token: token, Mount: []Routes{func(r gin.IRouter) {
		r.GET("/admin/v1/stats", func(c *gin.Context) { c.String(http.StatusOK, "stats") })
	}}})
	for _, path := range []string{"/healthz", "/readyz"} {
		require.Equal(t, http.StatusOK, ask(h, http.MethodGet, path).Code)
		require.Equal(t, http.StatusOK, ask(h, http.MethodHead, path).Code)
	}
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/cmdline", "/admin/v1/stats"} {
		for _, header := range []string{"Bearer " + token, "bearer " + token, "BEARER  " + token} {
			require.Equal(t, http.StatusOK, ask(h, http.MethodGet, path, "Authorization", header).Code, header)
		}
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer " + token + "x", "Bearer s3cret", token, "Basic " + token, "Bearer S3CRET-TOKEN"} {
			w := ask(h, http.MethodGet, path, "Authorization", header)
			requireProblem(t, w, http.StatusUnauthorized, "unauthorized")
			require.Contains(t, w.Header().Get("WWW-Authenticate"), "Bearer")
		}
	}
	// What exists is not told without the token either.
	require.Equal(t, http.StatusUnauthorized, ask(h, http.MethodGet, "/nowhere").Code)
	require.Equal(t, http.StatusUnauthorized, ask(h, http.MethodDelete, "/healthz").Code)
	require.Equal(t, http.StatusUnauthorized, ask(h, http.MethodGet, "/healthz/").Code)
	requireProblem(t, ask(h, http.MethodGet, "/nowhere", "Authorization", "Bearer "+token), http.StatusNotFound, "not-found")
}

func TestMountedRoutesWithoutToken(t *testing.T) {
	h := newOperator(t, OperatorConfig{Mount: []Routes{func(r gin.IRouter) {
		r.GET("/console", func(c *gin.Context) { c.String(http.StatusOK, "page") })
		r.POST("/admin/v1/redrive", func(c *gin.Context) { c.Status(http.StatusAccepted) })
		r.GET("/panic", func(*gin.Context) { panic("secret") })
	}}})
	require.Equal(t, "page", ask(h, http.MethodGet, "/console").Body.String())
	require.Equal(t, http.StatusAccepted, ask(h, http.MethodPost, "/admin/v1/redrive").Code, "a program, not a browser")
	w := ask(h, http.MethodPost, "/admin/v1/redrive", "Origin", "https://evil.example.org", "Sec-Fetch-Site", "cross-site")
	requireProblem(t, w, http.StatusForbidden, "cross-origin")
	w = ask(h, http.MethodGet, "/panic")
	require.NotContains(t, w.Body.String(), "secret")
	requireProblem(t, w, http.StatusInternalServerError, "internal")
	requireProblem(t, ask(h, http.MethodPost, "/metrics"), http.StatusMethodNotAllowed, "method-not-allowed")
}

func TestOperatorRefusesBadConfig(t *testing.T) {
	reg := prometheus.NewRegistry()
	for _, cfg := range []OperatorConfig{
		{},
		{Gatherer: reg, ReadyTimeout: -1},
		{Gatherer: reg, Token: "line\n"},
		{Gatherer: reg, Checks: []Check{{"", ok}}},
		{Gatherer: reg, Checks: []Check{{"broker", nil}}},
		{Gatherer: reg, Checks: []Check{{"broker", ok}, {"broker", ok}}},
	} {
		_, err := Operator(cfg)
		require.Error(t, err)
	}
}

func TestCheckOperatorAddress(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:8081", "127.8.9.1:0", "localhost:8081", "LOCALHOST:8081", "[::1]:8081", "[::ffff:127.0.0.1]:8081"} {
		require.NoError(t, CheckOperatorAddress(addr, ""), addr)
	}
	for _, addr := range []string{":8081", "0.0.0.0:8081", "[::]:8081", "10.0.0.7:8081", "admin.example.org:8081", "localhost.example.org:8081", "127.0.0.1.example.org:80", "2130706433:8081"} {
		err := CheckOperatorAddress(addr, "")
		require.ErrorContains(t, err, "set the operator's token", addr)
		require.ErrorContains(t, err, "127.0.0.1:8081", addr)
		require.NoError(t, CheckOperatorAddress(addr, "s3cret"), addr)
	}
	for _, addr := range []string{"", "8081", "localhost", "::1:8081"} {
		require.Error(t, CheckOperatorAddress(addr, "s3cret"), addr)
	}
	err := CheckOperatorAddress(":8081", "s3cret\n")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cret")
}
