package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/points"
)

const goodBody = `{"user_id":7,"amount_cents":9990}`

func TestErrorsBecomeProblems(t *testing.T) {
	secret := errors.New("dial tcp 10.0.0.7:3306: secret of the inside")
	for _, tc := range []struct {
		name       string
		err        error
		status     int
		problem    string
		orderNo    string
		retryAfter string
		logged     zapcore.Level // InvalidLevel: nothing but the access log
	}{
		{"invalid", &order.InvalidError{Field: "user_id", Reason: "must be a positive number"}, 400, "invalid-request", "", "", zapcore.InvalidLevel},
		{"key reused", order.ErrKeyReused, 422, "idempotency-key-reused", "", "", zapcore.InvalidLevel},
		{"outcome unknown", &order.UnknownError{OrderNo: "ORDER1", Err: halfbox.Unknown(secret)}, 503, "outcome-unknown", "ORDER1", "2", zapcore.WarnLevel},
		{"outcome unknown, wrapped", fmt.Errorf("create: %w", &order.UnknownError{OrderNo: "ORDER1", Err: halfbox.Unknown(context.Canceled)}), 503, "outcome-unknown", "ORDER1", "2", zapcore.WarnLevel},
		{"outcome unknown, no number", halfbox.Unknown(secret), 503, "outcome-unknown", "", "2", zapcore.WarnLevel},
		{"no place for the message", fmt.Errorf("create order: %w", halfbox.RolledBack(fmt.Errorf("%w: %w", halfbox.ErrUnavailable, secret))), 503, "unavailable", "", "5", zapcore.WarnLevel},
		{"backlog", fmt.Errorf("create order: %w", halfbox.RolledBack(fmt.Errorf("%w: %w", outbox.ErrBacklog, secret))), 503, "overloaded", "", "10", zapcore.WarnLevel},
		{"deadline", halfbox.RolledBack(fmt.Errorf("%w: %w", context.DeadlineExceeded, secret)), 503, "unavailable", "", "5", zapcore.WarnLevel},
		{"rolled back for another reason", halfbox.RolledBack(secret), 500, "internal", "", "", zapcore.ErrorLevel},
		{"canceled, but not by the client", halfbox.RolledBack(context.Canceled), 500, "internal", "", "", zapcore.ErrorLevel},
		{"anything else", secret, 500, "internal", "", "", zapcore.ErrorLevel},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newStubbed(t, createFunc(func(context.Context, order.CreateRequest) (order.Order, bool, error) {
				return order.Order{}, false, tc.err
			}))
			w := call(t, f, post(goodBody, "X-Request-Id", "r-1"))
			require.NotContains(t, w.Body.String(), "secret")
			requireNoInternals(t, w.Body.String())
			p := requireProblem(t, w, tc.status, tc.problem)
			require.Equal(t, tc.orderNo, p.OrderNo)
			require.Equal(t, tc.retryAfter, w.Header().Get("Retry-After"))
			require.Equal(t, "r-1", p.RequestID)

			entries := f.logs.Filter(func(e observedEntry) bool { return e.Message != "request" }).All()
			if tc.logged == zapcore.InvalidLevel {
				require.Empty(t, entries)
				return
			}
			require.Len(t, entries, 1)
			require.Equal(t, tc.logged, entries[0].Level)
			require.Equal(t, "r-1", entries[0].ContextMap()["request_id"])
			require.Equal(t, tc.err.Error(), entries[0].ContextMap()["error"])
		})
	}
}

// A lost answer to COMMIT, by the real service: the order is there, its number is in the problem, and the same key
// finds it.
func TestCommitAnswerLost(t *testing.T) {
	var lose atomic.Bool
	f := newFixture(t, database.Hooks{After: func(op database.Op, _ string) error {
		if op == database.OpCommit && lose.CompareAndSwap(true, false) {
			return errors.New("connection reset")
		}
		return nil
	}})
	lose.Store(true)
	w := call(t, f, post(goodBody, "Idempotency-Key", "k"))
	p := requireProblem(t, w, http.StatusServiceUnavailable, "outcome-unknown")
	require.NotEmpty(t, w.Header().Get("Retry-After"))
	require.EqualValues(t, 1, f.rows(t))

	w = call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/orders/"+p.OrderNo, nil))
	require.Equal(t, http.StatusOK, w.Code)
	w = call(t, f, post(goodBody, "Idempotency-Key", "k"))
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, p.OrderNo, decode[orderAnswer](t, w.Body).OrderNo)
	require.EqualValues(t, 1, f.rows(t))
}

func TestDatabaseErrorStaysInside(t *testing.T) {
	f := newFixture(t, database.Hooks{Before: func(_ database.Op, query string) error {
		if strings.Contains(query, "t_order") && strings.HasPrefix(query, "INSERT") {
			return errors.New("no such table: secret")
		}
		return nil
	}})
	w := call(t, f, post(goodBody))
	require.NotContains(t, w.Body.String(), "secret")
	requireProblem(t, w, http.StatusInternalServerError, "internal")
	require.Zero(t, f.rows(t))
	require.Equal(t, 1, f.logs.FilterMessage("request failed").FilterLevelExact(zap.ErrorLevel).Len())
}

// Another process holds SQLite's write lock for longer than the lock wait.
func TestLockConflictIsUnavailable(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	var (
		seq        int
		name, path string
	)
	require.NoError(t, f.db.Read.Raw("PRAGMA database_list").Row().Scan(&seq, &name, &path))
	other, err := database.OpenSQLite(path, database.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	tx, err := other.SQL().Begin()
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()

	_, err = f.db.SQL().Exec("PRAGMA busy_timeout = 1")
	require.NoError(t, err)
	w := call(t, f, post(goodBody))
	requireProblem(t, w, http.StatusServiceUnavailable, "unavailable")
}

func TestCanceledByTheClient(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, r := range []*http.Request{
		post(goodBody).WithContext(ctx),
		httptest.NewRequest(http.MethodGet, "/api/v1/orders/ORDER1", nil).WithContext(ctx),
		httptest.NewRequest(http.MethodGet, "/api/v1/users/7/points", nil).WithContext(ctx),
	} {
		requireProblem(t, call(t, f, r), 499, "request-canceled")
	}
	require.Zero(t, f.rows(t))
	require.Zero(t, f.logs.Filter(func(e observedEntry) bool { return e.Level >= zap.WarnLevel }).Len())
}

// The request's own deadline ends work that takes too long; one that only reads has a shorter one.
func TestRequestTimeout(t *testing.T) {
	interrupted := errors.New("interrupted")
	for _, tc := range []struct {
		name    string
		orders  Orders
		request *http.Request
		timeout time.Duration
	}{
		{"create", createFunc(func(ctx context.Context, _ order.CreateRequest) (order.Order, bool, error) {
			<-ctx.Done()
			return order.Order{}, false, interrupted
		}), post(goodBody), defaultRequestTimeout},
		{"read", getFunc(func(ctx context.Context, _ string) (order.Order, error) {
			<-ctx.Done()
			return order.Order{}, interrupted
		}), httptest.NewRequest(http.MethodGet, "/api/v1/orders/ORDER1", nil), defaultReadTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, err := Public(PublicConfig{Orders: tc.orders, Points: pointsFunc(nil)})
				require.NoError(t, err)
				start := time.Now()
				requireProblem(t, call(t, h, tc.request), http.StatusServiceUnavailable, "unavailable")
				require.Equal(t, tc.timeout, time.Since(start))
			})
		})
	}
}

func TestOverload(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	h, err := Public(PublicConfig{
		MaxInFlight: 2,
		Orders: createFunc(func(context.Context, order.CreateRequest) (order.Order, bool, error) {
			entered <- struct{}{}
			<-release
			return order.Order{}, false, halfbox.RolledBack(halfbox.ErrUnavailable)
		}),
		Points: pointsFunc(func(context.Context, int64) (points.Account, error) { return points.Account{}, nil }),
	})
	require.NoError(t, err)
	done := make(chan int)
	for range 2 {
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, post(goodBody))
			done <- w.Code
		}()
		<-entered
	}
	w := call(t, h, post(goodBody))
	requireProblem(t, w, http.StatusServiceUnavailable, "overloaded")
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Equal(t, http.StatusNotFound, call(t, h, httptest.NewRequest(http.MethodGet, "/api/v1/orders/A", nil)).Code, "reads go on")

	close(release)
	for range 2 {
		require.Equal(t, http.StatusServiceUnavailable, <-done)
	}
	go func() { <-entered }()
	requireProblem(t, call(t, h, post(goodBody)), http.StatusServiceUnavailable, "unavailable")
}

func TestPublicRefusesBadConfig(t *testing.T) {
	orders := getFunc(nil)
	p := pointsFunc(nil)
	for _, cfg := range []PublicConfig{
		{},
		{Orders: orders},
		{Points: p},
		{Orders: orders, Points: p, MaxInFlight: -1},
		{Orders: orders, Points: p, RequestTimeout: -1},
		{Orders: orders, Points: p, ReadTimeout: -1},
	} {
		_, err := Public(cfg)
		require.Error(t, err)
	}
	f := newStubbed(t, orders)
	_, err := Public(PublicConfig{Orders: orders, Points: p, Registerer: f.reg})
	require.Error(t, err, "the registry has these metrics")
}
