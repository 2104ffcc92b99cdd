package checkback_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/order"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	grace = time.Minute
	// wait is the deadline for what must happen, that of a check included.
	wait = time.Minute
)

// engine is one migrated order database; every open is a process's own view of it.
type engine struct {
	open func(t testing.TB, o database.Options) *database.DB
}

// onEngines runs the test on SQLite, and on MySQL where there is one, see package enginetest.
func onEngines(t *testing.T, test func(t *testing.T, e engine)) {
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(t, newSQLite(t)) })
	t.Run("mysql", func(t *testing.T) { t.Parallel(); test(t, newMySQL(t)) })
}

func newSQLite(t testing.TB) engine {
	path := filepath.Join(t.TempDir(), "order.db")
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
	require.NoError(t, e.open(t, database.Options{}).Migrate(t.Context(), order.Migrations()))
	return e
}

// checker is an instance that answers check-backs, on a handle of its own.
type checker struct {
	*checkback.Checker
	reg *prometheus.Registry
}

func newChecker(t testing.TB, db *database.DB, change ...func(*checkback.Config)) checker {
	t.Helper()
	r := order.NewCreatedResolver(db)
	return checkerOf(t, patient{r, r}, change...)
}

// patient is a resolver whose database is up when it answers at all. The checker leaves a database alone for a second
// that has not answered within 250 ms, which a pause of the machine takes.
type patient struct {
	checkback.Resolver
	pinger checkback.Pinger
}

func (p patient) Ping(ctx context.Context) error { return p.pinger.Ping(context.WithoutCancel(ctx)) }

func checkerOf(t testing.TB, r checkback.Resolver, change ...func(*checkback.Config)) checker {
	t.Helper()
	reg := prometheus.NewRegistry()
	cfg := checkback.Config{Resolvers: map[string]checkback.Resolver{order.EventCreated: r}, Grace: grace, Deadline: wait, Registerer: reg}
	for _, c := range change {
		c(&cfg)
	}
	ch, err := checkback.New(cfg)
	require.NoError(t, err)
	return checker{ch, reg}
}

// counted asserts the metric, every other series included.
func (c checker) counted(t testing.TB, want map[string]int) {
	t.Helper()
	text := "# HELP halfbox_checkback_answers_total Answers given to the broker's check-backs, by answer and reason.\n# TYPE halfbox_checkback_answers_total counter\n"
	for _, series := range []string{
		"commit row", "rollback buried", "rollback superseded", "rollback tombstone",
		"unknown down", "unknown error", "unknown panic", "unknown undecidable", "unknown unknown_type", "unknown young",
	} {
		answer, reason, _ := strings.Cut(series, " ")
		text += fmt.Sprintf("halfbox_checkback_answers_total{answer=%q,reason=%q} %d\n", answer, reason, want[series])
	}
	require.NoError(t, testutil.GatherAndCompare(c.reg, strings.NewReader(text)))
}

// attempts is a publisher whose attempt the test knows; inside is called before COMMIT.
type attempts struct {
	db     *database.DB
	at     halfbox.Attempt
	inside func()
}

func (p attempts) PublishInTx(ctx context.Context, _ halfbox.Event, local func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error) {
	return halfbox.Receipt{Attempt: p.at}, p.db.InTx(ctx, func(tx *gorm.DB) error {
		err := local(tx, p.at)
		if err == nil && p.inside != nil {
			p.inside()
		}
		return err
	})
}

func newAttempt(t testing.TB) halfbox.Attempt {
	t.Helper()
	at, err := halfbox.NewAttempt(halfbox.DeliveryTxmsg)
	require.NoError(t, err)
	return at
}

// create runs the local transaction of an order under the attempt.
func create(t testing.TB, p attempts) (order.Order, error) {
	t.Helper()
	s, err := order.NewService(order.Config{DB: p.db, Default: halfbox.DeliveryTxmsg, Publishers: map[halfbox.Delivery]order.Publisher{halfbox.DeliveryTxmsg: p}})
	require.NoError(t, err)
	o, _, err := s.Create(context.Background(), order.CreateRequest{UserID: 7, AmountCents: 100})
	return o, err
}

// half is the half message of an attempt, of a certain age.
func half(at halfbox.Attempt, orderNo string, age time.Duration) checkback.Half {
	return checkback.Half{MsgID: at.MsgID, Type: order.EventCreated, BizNo: orderNo, BornAt: time.Now().Add(-age)}
}

func rows(t testing.TB, db *database.DB, where string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM t_order WHERE "+where, args...).Scan(&n).Error)
	return n
}
