package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

func cancel(orderNo, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/api/v1/orders/"+orderNo+"/cancel", strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func createdOrder(t *testing.T, f *fixture) orderAnswer {
	t.Helper()
	w := call(t, f, post(goodBody))
	require.Equal(t, http.StatusCreated, w.Code, w.Body.String())
	return decode[orderAnswer](t, w.Body)
}

func TestCancelOrder(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	for name, body := range map[string]string{
		"no body": "", "blank": " \n", "empty object": "{}", "delivery": `{"delivery":"outbox"}`, "the other": `{"delivery":"txmsg"}`,
	} {
		t.Run(name, func(t *testing.T) {
			o := createdOrder(t, f)
			w := call(t, f, cancel(o.OrderNo, body))
			require.Equal(t, http.StatusOK, w.Code, w.Body.String())
			raw := w.Body.String()
			want := o
			want.Status = "CANCELLED"
			require.Equal(t, want, decode[orderAnswer](t, w.Body))

			w = call(t, f, cancel(o.OrderNo, ""))
			require.Equal(t, http.StatusOK, w.Code)
			require.Equal(t, raw, w.Body.String(), "the same answer")
			w = call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/orders/"+o.OrderNo, nil))
			require.Equal(t, raw, w.Body.String())
		})
	}
}

func TestCancelOrderRefuses(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	o := createdOrder(t, f)
	for _, no := range []string{"NOSUCHORDER", "~0198f5b2-7c41-7d0e-9a53-5b1f0c9e8d21", strings.Repeat("A", 65), "a%00b"} {
		requireProblem(t, call(t, f, cancel(no, "")), http.StatusNotFound, "not-found")
	}
	for name, tc := range map[string]struct{ body, field string }{
		"broken":            {`{`, ""},
		"array":             {`[]`, ""},
		"null":              {`null`, ""},
		"unknown field":     {`{"reason":"no"}`, "reason"},
		"field of create":   {`{"user_id":7}`, "user_id"},
		"twice":             {`{"delivery":"txmsg","delivery":"outbox"}`, "delivery"},
		"delivery empty":    {`{"delivery":""}`, "delivery"},
		"delivery null":     {`{"delivery":null}`, "delivery"},
		"delivery unknown":  {`{"delivery":"pigeon"}`, "delivery"},
		"delivery not here": {`{"delivery":"cdc"}`, "delivery"},
		"two documents":     {`{}{}`, ""},
	} {
		w := call(t, f, cancel(o.OrderNo, tc.body))
		requireNoInternals(t, w.Body.String())
		p := requireProblem(t, w, http.StatusBadRequest, "invalid-request")
		require.Equal(t, tc.field, p.Field, name)
	}
	form := cancel(o.OrderNo, "{}")
	form.Header.Set("Content-Type", "text/plain")
	requireProblem(t, call(t, f, form), http.StatusUnsupportedMediaType, "unsupported-media-type")
	bare := cancel(o.OrderNo, "{}")
	bare.Header.Del("Content-Type")
	requireProblem(t, call(t, f, bare), http.StatusUnsupportedMediaType, "unsupported-media-type")
	requireProblem(t, call(t, f, cancel(o.OrderNo, `{"delivery":"txmsg"}`+strings.Repeat(" ", 64<<10))), http.StatusRequestEntityTooLarge, "body-too-large")
	w := call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/orders/"+o.OrderNo, nil))
	require.Equal(t, "CREATED", decode[orderAnswer](t, w.Body).Status)
	require.Zero(t, f.logs.FilterLevelExact(zap.ErrorLevel).Len())
}

// The points are taken back, and only once.
func TestCancelTakesThePointsBack(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	o := createdOrder(t, f)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { f.ServeHTTP(httptest.NewRecorder(), cancel(o.OrderNo, "")) })
	}
	wg.Wait()
	w := call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/users/7/points", nil))
	require.Equal(t, http.StatusOK, w.Code)
	acc := decode[accountAnswer](t, w.Body)
	require.Zero(t, acc.Balance)
	require.Len(t, acc.Records, 2)
	require.Equal(t, []any{"REVERSE", int64(-99), "EARN", int64(99)},
		[]any{acc.Records[0].Type, acc.Records[0].Points, acc.Records[1].Type, acc.Records[1].Points})
}

func TestCancelErrorsBecomeProblems(t *testing.T) {
	cause := errors.New("secret of the inside")
	for name, tc := range map[string]struct {
		err     error
		status  int
		problem string
	}{
		"not found":   {order.ErrNotFound, 404, "not-found"},
		"unknown":     {&order.UnknownError{OrderNo: "ORDER1", Err: halfbox.Unknown(cause)}, 503, "outcome-unknown"},
		"no place":    {halfbox.RolledBack(halfbox.ErrUnavailable), 503, "unavailable"},
		"busy":        {halfbox.RolledBack(order.ErrBusy), 503, "unavailable"},
		"rolled back": {halfbox.RolledBack(cause), 500, "internal"},
	} {
		f := newStubbed(t, cancelFunc(func(context.Context, order.CancelRequest) (order.Order, error) { return order.Order{}, tc.err }))
		w := call(t, f, cancel("ORDER1", ""))
		require.NotContains(t, w.Body.String(), "secret", name)
		requireProblem(t, w, tc.status, tc.problem)
	}
}

// COMMIT's answer is lost, both ways: the outcome is told as unknown, and cancelling again resolves it.
func TestCancelCommitAnswerLost(t *testing.T) {
	for _, committed := range []bool{true, false} {
		var lose atomic.Bool
		hook := func(op database.Op, _ string) error {
			if op == database.OpCommit && lose.CompareAndSwap(true, false) {
				return errors.New("connection reset")
			}
			return nil
		}
		hooks := database.Hooks{Before: hook}
		if committed {
			hooks = database.Hooks{After: hook}
		}
		f := newFixture(t, hooks)
		o := createdOrder(t, f)
		lose.Store(true)
		w := call(t, f, cancel(o.OrderNo, ""))
		p := requireProblem(t, w, http.StatusServiceUnavailable, "outcome-unknown")
		require.Equal(t, o.OrderNo, p.OrderNo)
		require.NotEmpty(t, w.Header().Get("Retry-After"))
		w = call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/orders/"+o.OrderNo, nil))
		require.Equal(t, map[bool]string{true: "CANCELLED", false: "CREATED"}[committed], decode[orderAnswer](t, w.Body).Status)
		w = call(t, f, cancel(o.OrderNo, ""))
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "CANCELLED", decode[orderAnswer](t, w.Body).Status)
	}
}

func TestCancelIsCountedAgainstTheLimit(t *testing.T) {
	const limit = 32 // of the fixture
	entered, release := make(chan struct{}, limit), make(chan struct{})
	f := newStubbed(t, cancelFunc(func(context.Context, order.CancelRequest) (order.Order, error) {
		entered <- struct{}{}
		<-release
		return order.Order{}, order.ErrNotFound
	}))
	var wg sync.WaitGroup
	for range limit {
		wg.Go(func() { f.ServeHTTP(httptest.NewRecorder(), cancel("ORDER1", "")) })
	}
	for range limit {
		<-entered
	}
	requireProblem(t, call(t, f, cancel("ORDER1", "")), http.StatusServiceUnavailable, "overloaded")
	close(release)
	wg.Wait()
}
