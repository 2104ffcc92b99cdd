package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/points"
	"github.com/halfbox/halfbox/txmsg"
)

// The connection to the database breaks during COMMIT, which did commit or did not; orders are made and cancelled, by
// both strategies, on both databases. The API says that it does not know, a repetition or a GET tells, and the event is
// published exactly if the database says so.
func TestOutcomeIsAlwaysToldTruly(t *testing.T) {
	t.Parallel()
	for engine, start := range map[string]func(t *testing.T, committed bool) *commitLine{"sqlite": sqliteLine, "mysql": mysqlLine} {
		for _, delivery := range []string{"txmsg", "outbox"} {
			for _, verb := range []string{"create", "cancel"} {
				for _, committed := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s %s by %s, committed %v", engine, verb, delivery, committed), func(t *testing.T) {
						t.Parallel()
						api := newBrittleAPI(t, start(t, committed), delivery)
						if verb == "create" {
							createOverABreak(t, api, committed)
						} else {
							cancelOverABreak(t, api, committed)
						}
					})
				}
			}
		}
	}
}

// commitLine is a database whose connection breaks during the next COMMIT once it is armed.
type commitLine struct {
	db      *database.DB // the service's
	healthy *database.DB // another way to the same database
	armed   atomic.Bool
	broken  chan struct{} // gets a value when COMMIT has been reached
	cut     func()        // breaks the connection for good, once it is certain whether it has committed
	mend    func()
}

var errBroken = errors.New("injected: connection lost")

func sqliteLine(t *testing.T, committed bool) *commitLine {
	l := &commitLine{broken: make(chan struct{}, 1), cut: func() {}, mend: func() {}}
	hook := func(op database.Op, _ string) error {
		if op == database.OpCommit && l.armed.CompareAndSwap(true, false) {
			l.broken <- struct{}{}
			return errBroken
		}
		return nil
	}
	hooks := database.Hooks{Before: hook}
	if committed {
		hooks = database.Hooks{After: hook}
	}
	path := filepath.Join(t.TempDir(), "order.db")
	open := func(o database.Options) *database.DB {
		db, err := database.OpenSQLite(path, o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}
	l.healthy = open(database.Options{})
	l.db = open(database.Options{Hooks: hooks})
	return l
}

// mysqlLine breaks a real connection: the COMMIT does not get through, or its answer does not.
func mysqlLine(t *testing.T, committed bool) *commitLine {
	dsn := enginetest.MySQL(t)
	wire, through := enginetest.MySQLProxy(t, dsn)
	l := &commitLine{broken: make(chan struct{}, 1), cut: wire.Cut, mend: func() { wire.Pass() }}
	open := func(dsn string, o database.Options) *database.DB {
		db, err := database.OpenMySQL(dsn, o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}
	l.healthy = open(dsn, database.Options{})
	l.db = open(through, database.Options{Hooks: database.Hooks{Before: func(op database.Op, _ string) error {
		if op == database.OpCommit && l.armed.CompareAndSwap(true, false) {
			if committed {
				wire.Blackhole(enginetest.ToClient)
			} else {
				wire.DropAfter(0, enginetest.ToServer)
			}
			l.broken <- struct{}{}
		}
		return nil
	}}})
	return l
}

// brittleAPI is the public API over the real strategies and a broker.
type brittleAPI struct {
	http.Handler
	*commitLine
	t        *testing.T
	broker   *broker.Broker
	delivery string
}

const outcomeTopic = "ORDER_EVENT_TOPIC"

func newBrittleAPI(t *testing.T, l *commitLine, delivery string) *brittleAPI {
	for _, line := range []database.Line{order.Migrations(), outbox.Migrations(), txlog.Migrations()} {
		require.NoError(t, l.healthy.Migrate(t.Context(), line))
	}
	b := brokertest.Start(t)
	checker, err := checkback.New(checkback.Config{Grace: time.Second, Resolvers: map[string]checkback.Resolver{
		order.EventCreated: order.NewCreatedResolver(l.healthy), order.EventCancelled: txlog.NewResolver(l.healthy),
	}})
	require.NoError(t, err)
	producer, err := txmsg.New(txmsg.Config{
		DB: l.db, NameServers: []string{b.Addr()}, Group: "tx-" + uuid.NewString(), Topic: outcomeTopic, Checker: checker,
		HalfTimeout: 15 * time.Second, LocalTimeout: 15 * time.Second, // a slow machine decides nothing
	})
	require.NoError(t, err)
	require.NoError(t, producer.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		require.NoError(t, producer.Stop(ctx))
	})
	writer, err := outbox.NewWriter(outbox.WriterConfig{DB: l.db, Sink: "main", Destination: outcomeTopic})
	require.NoError(t, err)
	orders, err := order.NewService(order.Config{DB: l.db, Default: halfbox.DeliveryTxmsg, Publishers: map[halfbox.Delivery]order.Publisher{
		halfbox.DeliveryTxmsg: producer, halfbox.DeliveryOutbox: writer,
	}})
	require.NoError(t, err)
	public, err := httpapi.Public(httpapi.PublicConfig{Orders: orders, Points: points.NewLedger(l.healthy)})
	require.NoError(t, err)
	return &brittleAPI{Handler: public, commitLine: l, t: t, broker: b, delivery: delivery}
}

// said is an answer of the API.
type said struct {
	code    int
	OrderNo string `json:"order_no"`
	Status  any    `json:"status"`
	Type    string `json:"type"`
	MsgID   string `json:"msg_id"`
}

func (a *brittleAPI) ask(method, path, body string) (s said) {
	r := httptest.NewRequest(method, "/api/v1/orders"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "key")
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Body)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		a.t.Errorf("%s %s: %v", method, path, err)
	}
	s.code = w.Code
	return s
}

func (a *brittleAPI) create() said {
	return a.ask(http.MethodPost, "", fmt.Sprintf(`{"user_id":7,"amount_cents":9990,"delivery":%q}`, a.delivery))
}

func (a *brittleAPI) cancel(no string) said {
	return a.ask(http.MethodPost, "/"+no+"/cancel", fmt.Sprintf(`{"delivery":%q}`, a.delivery))
}

// broke sends a request whose COMMIT meets the break, and returns its answer. done tells on the healthy way whether it
// has committed.
func (a *brittleAPI) broke(committed bool, send func() said, done func() bool) said {
	a.t.Helper()
	a.armed.Store(true)
	answer := make(chan said, 1)
	go func() { answer <- send() }()
	<-a.broken
	if committed {
		require.Eventually(a.t, done, wait, tick, "COMMIT does not arrive")
	} else {
		require.Never(a.t, done, 300*time.Millisecond, 5*tick, "COMMIT arrived")
	}
	a.cut()
	var s said
	select {
	case s = <-answer:
	case <-time.After(wait):
		a.t.Fatal("no answer")
	}
	a.mend()
	require.Equal(a.t, http.StatusServiceUnavailable, s.code)
	require.Equal(a.t, "/problems/outcome-unknown", s.Type)
	require.NotEmpty(a.t, s.OrderNo)
	require.Equal(a.t, committed, done())
	return s
}

func (a *brittleAPI) count(query string, args ...any) (n int) {
	a.t.Helper()
	require.NoError(a.t, a.healthy.Read.Raw("SELECT COUNT(*) FROM "+query, args...).Scan(&n).Error)
	return n
}

// requirePublished asserts that a fact is on its way under this id, and under no other.
func (a *brittleAPI) requirePublished(typ, no, msgID string) {
	a.t.Helper()
	if a.delivery == "outbox" {
		require.Equal(a.t, 1, a.count("t_event_record WHERE event_type = ? AND biz_no = ? AND msg_id = ?", typ, no, msgID))
		require.Equal(a.t, 1, a.count("t_event_record WHERE event_type = ? AND biz_no = ?", typ, no))
		return
	}
	require.Eventually(a.t, func() bool {
		found, err := a.broker.FindMessages(outcomeTopic, msgID)
		return err == nil && len(found) > 0
	}, wait, tick, "not delivered")
}

func createOverABreak(t *testing.T, a *brittleAPI, committed bool) {
	unknown := a.broke(committed, a.create, func() bool { return a.count("t_order WHERE status = 'CREATED'") == 1 })
	got := a.ask(http.MethodGet, "/"+unknown.OrderNo, "")
	again := a.create()
	if committed {
		require.Equal(t, http.StatusOK, got.code)
		require.Equal(t, http.StatusOK, again.code, "the key gives the same order")
		require.Equal(t, unknown.OrderNo, again.OrderNo)
	} else {
		require.Equal(t, http.StatusNotFound, got.code)
		require.Equal(t, http.StatusCreated, again.code)
		require.NotEqual(t, unknown.OrderNo, again.OrderNo)
	}
	require.Equal(t, 1, a.count("t_order WHERE status = 'CREATED'"))
	a.requirePublished(order.EventCreated, again.OrderNo, again.MsgID)
}

func cancelOverABreak(t *testing.T, a *brittleAPI, committed bool) {
	o := a.create()
	require.Equal(t, http.StatusCreated, o.code)
	cancelled := func() bool { return a.count("t_order WHERE status = 'CANCELLED'") == 1 }
	unknown := a.broke(committed, func() said { return a.cancel(o.OrderNo) }, cancelled)
	require.Equal(t, o.OrderNo, unknown.OrderNo)
	want := map[bool]string{true: "CANCELLED", false: "CREATED"}[committed]
	require.Equal(t, want, a.ask(http.MethodGet, "/"+o.OrderNo, "").Status)
	again := a.cancel(o.OrderNo)
	require.Equal(t, http.StatusOK, again.code)
	require.Equal(t, "CANCELLED", again.Status)
	require.Equal(t, 1, a.count("t_tx_log WHERE state = 'COMMITTED'"), "cancelled once")
	var txID string
	require.NoError(t, a.healthy.Read.Raw("SELECT tx_id FROM t_tx_log WHERE state = 'COMMITTED' AND biz_no = ?", o.OrderNo).Scan(&txID).Error)
	a.requirePublished(order.EventCancelled, o.OrderNo, txID)
}
