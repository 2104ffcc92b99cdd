package points_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/points"
)

func TestMain(m *testing.M) {
	// Each check is a schedule of dozens of transactions; -rapid.checks asks for more of them.
	if err := flag.Set("rapid.checks", "30"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const (
	consumer = "points-consumer"
	topic    = "ORDER_EVENT_TOPIC"
)

// engine is one migrated points database; every open is a process's own view of it.
type engine struct {
	open func(t testing.TB, o database.Options) *database.DB
}

// onEngines runs the test on SQLite, and on MySQL where there is one, see package enginetest.
func onEngines(t *testing.T, test func(t *testing.T, e engine)) {
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(t, newSQLite(t)) })
	t.Run("mysql", func(t *testing.T) { t.Parallel(); test(t, newMySQL(t)) })
}

func newSQLite(t testing.TB) engine {
	path := filepath.Join(t.TempDir(), "points.db")
	return migrated(t, func(o database.Options) (*database.DB, error) { return database.OpenSQLite(path, o) })
}

func newMySQL(t testing.TB) engine {
	dsn := enginetest.MySQL(t)
	return migrated(t, func(o database.Options) (*database.DB, error) { return database.OpenMySQL(dsn, o) })
}

func migrated(t testing.TB, open func(database.Options) (*database.DB, error)) engine {
	e := engine{open: func(t testing.TB, o database.Options) *database.DB {
		t.Helper()
		db, err := open(o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}}
	require.NoError(t, e.db(t).Migrate(t.Context(), points.Migrations()))
	return e
}

func (e engine) db(t testing.TB) *database.DB { return e.open(t, database.Options{}) }

// rig is a handler on a database.
type rig struct {
	*points.Handler
	t   testing.TB
	db  *database.DB
	reg *prometheus.Registry
}

func newRig(t testing.TB, db *database.DB, hooks points.Hooks) rig {
	t.Helper()
	reg := prometheus.NewRegistry()
	h, err := points.NewHandler(points.HandlerConfig{Consumer: consumer, DB: db, Registerer: reg, Hooks: hooks})
	require.NoError(t, err)
	return rig{Handler: h, t: t, db: db, reg: reg}
}

// handle handles a message and asserts its outcome.
func (r rig) handle(want points.Outcome, m points.Message) {
	r.t.Helper()
	got, err := r.Handle(r.t.Context(), m)
	require.NoError(r.t, err)
	require.Equal(r.t, want, got)
}

// counted asserts the metric, every outcome that is not named included.
func (r rig) counted(want map[points.Outcome]int) {
	r.t.Helper()
	text := "# HELP halfbox_points_messages_total Messages the points consumer has finished, by outcome. conflict must stay 0.\n" +
		"# TYPE halfbox_points_messages_total counter\n"
	for _, o := range []points.Outcome{
		points.Credited, points.Rejected, points.Reversed, points.ReversedFirst, points.EarnVoided, points.DuplicateMessage, points.DuplicateOrder, points.Conflict, points.DeadLetter,
	} {
		text += fmt.Sprintf("halfbox_points_messages_total{outcome=%q} %d\n", o, want[o])
	}
	require.NoError(r.t, testutil.GatherAndCompare(r.reg, strings.NewReader(text), "halfbox_points_messages_total"))
}

func (r rig) account(userID int64) points.Account {
	r.t.Helper()
	acc, err := points.NewLedger(r.db).Account(r.t.Context(), userID)
	require.NoError(r.t, err)
	return acc
}

// requireBalance asserts a user's balance and that it is the sum of the ledger.
func (r rig) requireBalance(userID, want int64, records int) {
	r.t.Helper()
	acc := r.account(userID)
	require.Equal(r.t, want, acc.Balance)
	var sum int64
	var n int
	require.NoError(r.t, r.db.Read.Raw("SELECT COALESCE(SUM(points), 0), COUNT(*) FROM t_points_record WHERE user_id = ?", userID).Row().Scan(&sum, &n))
	require.Equal(r.t, want, sum, "balance = sum of the ledger")
	require.Equal(r.t, records, n)
	if n > 0 && n <= points.MaxRecords {
		require.Equal(r.t, want, acc.Records[0].BalanceAfter, "the newest record says the balance")
	}
}

type deadLetter struct {
	Consumer, MsgID, Topic, Reason, State string
	Attempts                              int
	FirstFailedAt, LastFailedAt           time.Time
	Payload                               []byte
}

func (r rig) deadLetters() []deadLetter {
	r.t.Helper()
	var found []deadLetter
	require.NoError(r.t, r.db.Read.Table("t_dead_letter").Order("msg_id").Find(&found).Error)
	return found
}

// fact is an order event; the zero values of its fields are filled in.
type fact struct {
	msgID, orderNo, typ, schema string
	userID, amount              int64
	version                     int64
	data                        string
}

func newFact(userID, amount int64) fact {
	return fact{msgID: uuid.Must(uuid.NewV7()).String(), orderNo: uuid.NewString(), userID: userID, amount: amount}
}

// cancelled is the event of the order's cancellation.
func (f fact) cancelled() fact {
	f.msgID, f.typ, f.version = uuid.Must(uuid.NewV7()).String(), "order.cancelled", 2
	return f
}

func (f fact) message(t testing.TB) points.Message {
	t.Helper()
	ev := halfbox.Event{
		Type: "order.created", Source: "/halfbox/order", Subject: f.orderNo, Time: time.Now(), DataSchema: "urn:halfbox:schema:order:1",
		AggregateVersion: 1, PartitionKey: f.orderNo,
		Data: json.RawMessage(fmt.Sprintf(`{"order_no":%q,"user_id":%d,"amount_cents":%d}`, f.orderNo, f.userID, f.amount)),
	}
	if f.typ != "" {
		ev.Type = f.typ
	}
	if f.schema != "" {
		ev.DataSchema = f.schema
	}
	if f.version != 0 {
		ev.AggregateVersion = f.version
	}
	if f.data != "" {
		ev.Data = json.RawMessage(f.data)
	}
	if ev.Subject == "" {
		ev.Subject = "none"
	}
	body, err := halfbox.Encode(ev, f.msgID)
	require.NoError(t, err)
	return points.Message{MsgID: f.msgID, Topic: topic, Body: body}
}

// together runs fn n times at once and waits for all of them.
func together(n int, fn func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			fn(i)
		})
	}
	close(start)
	wg.Wait()
}
