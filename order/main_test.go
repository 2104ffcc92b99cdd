package order_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/order"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait is the deadline for what must happen.
const wait = time.Minute

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
	for _, line := range []database.Line{order.Migrations(), txlog.Migrations()} {
		require.NoError(t, e.db(t).Migrate(t.Context(), line))
	}
	return e
}

func (e engine) db(t testing.TB) *database.DB { return e.open(t, database.Options{}) }

// direct is a publisher that only runs the local transaction, as every strategy does, voided attempts included.
type direct struct {
	db       *database.DB
	delivery halfbox.Delivery

	mu     sync.Mutex
	events []halfbox.Event // of committed transactions
	calls  int
}

func (d *direct) PublishInTx(ctx context.Context, ev halfbox.Event, local func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error) {
	d.mu.Lock()
	d.calls++
	d.mu.Unlock()
	at, err := halfbox.NewAttempt(d.delivery)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	if err := d.db.InTx(ctx, func(tx *gorm.DB) error { return local(tx, at) }); err != nil {
		return halfbox.Receipt{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, ev)
	return halfbox.Receipt{Attempt: at}, nil
}

func newService(t testing.TB, db *database.DB) (*order.Service, *direct) {
	t.Helper()
	d := &direct{db: db, delivery: halfbox.DeliveryTxmsg}
	s, err := order.NewService(order.Config{
		DB: db, Default: halfbox.DeliveryTxmsg,
		Publishers: map[halfbox.Delivery]order.Publisher{
			halfbox.DeliveryTxmsg: d, halfbox.DeliveryOutbox: &direct{db: db, delivery: halfbox.DeliveryOutbox},
		},
	})
	require.NoError(t, err)
	return s, d
}

func count(t testing.TB, db *database.DB, where string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM t_order WHERE "+where, args...).Scan(&n).Error)
	return n
}

var errWire = errors.New("injected: connection lost")

// once returns a hook that answers the first COMMIT after it was armed with an error.
func once() (hook func(database.Op, string) error, arm func()) {
	armed := make(chan struct{}, 1)
	return func(op database.Op, _ string) error {
		if op != database.OpCommit {
			return nil
		}
		select {
		case <-armed:
			return errWire
		default:
			return nil
		}
	}, func() { armed <- struct{}{} }
}
