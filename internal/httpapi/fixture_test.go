package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/points"
)

// direct is a publisher whose delivery is a function call after COMMIT.
type direct struct {
	db       *database.DB
	delivery halfbox.Delivery
	handler  *points.Handler
}

func (d direct) PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	at, err := halfbox.NewAttempt(d.delivery)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	if err := d.db.InTx(ctx, func(tx *gorm.DB) error { return local(tx, at) }); err != nil {
		return halfbox.Receipt{}, err
	}
	body, err := halfbox.Encode(ev, at.MsgID)
	if err != nil {
		return halfbox.Receipt{}, err
	}
	_, err = d.handler.Handle(ctx, points.Message{MsgID: at.MsgID, Topic: "ORDER_EVENT_TOPIC", Body: body})
	return halfbox.Receipt{Attempt: at}, err
}

// fixture is the public API over the real services and real databases.
type fixture struct {
	http.Handler
	db   *database.DB // of the orders
	logs *observer.ObservedLogs
	reg  *prometheus.Registry
}

func openDB(t *testing.T, name string, o database.Options, lines ...database.Line) *database.DB {
	t.Helper()
	db, err := database.OpenSQLite(filepath.Join(t.TempDir(), name), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	for _, line := range lines {
		require.NoError(t, db.Migrate(context.Background(), line))
	}
	return db
}

func newFixture(t *testing.T, hooks database.Hooks) *fixture {
	t.Helper()
	pointsDB := openDB(t, "points.db", database.Options{}, points.Migrations())
	handler, err := points.NewHandler(points.HandlerConfig{Consumer: "test", DB: pointsDB})
	require.NoError(t, err)
	db := openDB(t, "order.db", database.Options{Hooks: hooks}, order.Migrations(), txlog.Migrations())
	service, err := order.NewService(order.Config{
		DB: db, Default: halfbox.DeliveryTxmsg,
		Publishers: map[halfbox.Delivery]order.Publisher{
			halfbox.DeliveryTxmsg:  direct{db, halfbox.DeliveryTxmsg, handler},
			halfbox.DeliveryOutbox: direct{db, halfbox.DeliveryOutbox, handler},
		},
	})
	require.NoError(t, err)
	f := newStubbed(t, service)
	f.db = db
	f.Handler = public(t, f, service, points.NewLedger(pointsDB))
	return f
}

// newStubbed is a fixture without databases, for errors that real ones do not produce at will.
func newStubbed(t *testing.T, orders Orders) *fixture {
	t.Helper()
	f := &fixture{}
	f.Handler = public(t, f, orders, pointsFunc(func(context.Context, int64) (points.Account, error) {
		return points.Account{}, nil
	}))
	return f
}

func public(t *testing.T, f *fixture, orders Orders, p Points) http.Handler {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	f.logs, f.reg = logs, prometheus.NewRegistry()
	h, err := Public(PublicConfig{
		Orders: orders, Points: p, Logger: zap.New(core), Registerer: f.reg, MaxInFlight: 32,
		RequestTimeout: time.Minute, ReadTimeout: time.Minute, // a busy machine decides nothing
	})
	require.NoError(t, err)
	return h
}

// createFunc and getFunc are Orders of one function.
type createFunc func(context.Context, order.CreateRequest) (order.Order, bool, error)

func (f createFunc) Create(ctx context.Context, r order.CreateRequest) (order.Order, bool, error) {
	return f(ctx, r)
}

func (createFunc) Get(context.Context, string) (order.Order, error) {
	return order.Order{}, order.ErrNotFound
}

type getFunc func(context.Context, string) (order.Order, error)

func (getFunc) Create(context.Context, order.CreateRequest) (order.Order, bool, error) {
	return order.Order{}, false, nil
}
func (f getFunc) Get(ctx context.Context, no string) (order.Order, error) { return f(ctx, no) }

func (createFunc) Cancel(context.Context, order.CancelRequest) (order.Order, error) {
	return order.Order{}, order.ErrNotFound
}

func (getFunc) Cancel(context.Context, order.CancelRequest) (order.Order, error) {
	return order.Order{}, order.ErrNotFound
}

// cancelFunc is Orders of one function.
type cancelFunc func(context.Context, order.CancelRequest) (order.Order, error)

func (cancelFunc) Create(context.Context, order.CreateRequest) (order.Order, bool, error) {
	return order.Order{}, false, nil
}

func (cancelFunc) Get(context.Context, string) (order.Order, error) {
	return order.Order{}, order.ErrNotFound
}

func (f cancelFunc) Cancel(ctx context.Context, r order.CancelRequest) (order.Order, error) {
	return f(ctx, r)
}

type pointsFunc func(context.Context, int64) (points.Account, error)

func (f pointsFunc) Account(ctx context.Context, userID int64) (points.Account, error) {
	return f(ctx, userID)
}

// rows counts t_order, so that "changes nothing" is asked of the database.
func (f *fixture) rows(t *testing.T) int64 {
	t.Helper()
	var n int64
	require.NoError(t, f.db.Read.Raw("SELECT COUNT(*) FROM t_order").Scan(&n).Error)
	return n
}

func post(body string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/api/v1/orders", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return with(r, headers...)
}

func with(r *http.Request, headers ...string) *http.Request {
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// call sends a request to a public handler and holds the answer against the specification.
func call(t *testing.T, h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	loadSpec(t).check(t, r, w.Result().StatusCode, w.Header(), w.Body.Bytes())
	return w
}

func decode[T any](t *testing.T, body io.Reader) T {
	t.Helper()
	var v T
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&v))
	return v
}

// requireProblem checks the parts that every problem has and returns it.
func requireProblem(t *testing.T, w *httptest.ResponseRecorder, status int, name string) problem {
	t.Helper()
	require.Equal(t, status, w.Code, w.Body.String())
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	p := decode[problem](t, w.Body)
	require.Equal(t, "/problems/"+name, p.Type)
	require.Equal(t, status, p.Status)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
	require.NotEmpty(t, p.Instance)
	require.Equal(t, w.Header().Get("X-Request-Id"), p.RequestID)
	return p
}
