package txlog_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	typ   = "stock.taken"
	grace = time.Minute
	wait  = time.Minute
)

// engine is one migrated database; every open is a process's own view of it.
type engine func(t testing.TB, o database.Options) *database.DB

func onEngines(t *testing.T, test func(t *testing.T, open engine)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "own.db")
		test(t, migrated(t, func(o database.Options) (*database.DB, error) { return database.OpenSQLite(path, o) }))
	})
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		dsn := enginetest.MySQL(t)
		test(t, migrated(t, func(o database.Options) (*database.DB, error) { return database.OpenMySQL(dsn, o) }))
	})
}

func migrated(t testing.TB, open func(database.Options) (*database.DB, error)) engine {
	e := func(t testing.TB, o database.Options) *database.DB {
		t.Helper()
		db, err := open(o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}
	require.NoError(t, e(t, database.Options{}).Migrate(t.Context(), txlog.Migrations()))
	return e
}

func newAttempt(t testing.TB) halfbox.Attempt {
	t.Helper()
	at, err := halfbox.NewAttempt(halfbox.DeliveryTxmsg)
	require.NoError(t, err)
	return at
}

func half(at halfbox.Attempt, age time.Duration) checkback.Half {
	return checkback.Half{MsgID: at.MsgID, Type: typ, BizNo: "shelf-7", BornAt: time.Now().Add(-age)}
}

func newChecker(t testing.TB, db *database.DB) *checkback.Checker {
	t.Helper()
	c, err := checkback.New(checkback.Config{Resolvers: map[string]checkback.Resolver{typ: txlog.NewResolver(db)}, Grace: grace, Deadline: wait})
	require.NoError(t, err)
	return c
}

func states(t testing.TB, db *database.DB) map[string]string {
	t.Helper()
	var rows []struct{ TxID, State string }
	require.NoError(t, db.Read.Raw("SELECT tx_id, state FROM t_tx_log").Scan(&rows).Error)
	by := map[string]string{}
	for _, r := range rows {
		by[r.TxID] = r.State
	}
	return by
}

func record(ctx context.Context, db *database.DB, at halfbox.Attempt) error {
	return db.InTx(ctx, func(tx *gorm.DB) error { return txlog.Record(tx, at, typ, "shelf-7") })
}

// The decision table asked by tx_id alone; every answer is given twice, since the broker asks again.
func TestDecisionTable(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open engine) {
		db := open(t, database.Options{})
		c := newChecker(t, open(t, database.Options{LockWait: time.Second}))
		twice := func(want checkback.Answer, h checkback.Half) {
			t.Helper()
			for range 2 {
				require.Equal(t, want, c.Check(t.Context(), h))
			}
		}
		committed, lost, other := newAttempt(t), newAttempt(t), newAttempt(t)
		require.NoError(t, record(t.Context(), db, committed))
		twice(checkback.Commit, half(committed, 0))
		twice(checkback.Commit, half(committed, time.Hour))
		twice(checkback.Unknown, half(lost, 0))
		twice(checkback.Rollback, half(lost, time.Hour)) // buried, then the tombstone
		twice(checkback.Rollback, half(lost, 0))         // the tombstone counts at any age
		twice(checkback.Unknown, half(other, 0))         // the same fact under another id decides nothing
		require.Equal(t, map[string]string{committed.MsgID: "COMMITTED", lost.MsgID: "VOID"}, states(t, db))

		err := record(t.Context(), db, lost)
		require.ErrorIs(t, err, halfbox.ErrVoided, "a late local transaction meets its tombstone")
		require.ErrorIs(t, err, halfbox.ErrRolledBack)
		require.NoError(t, record(t.Context(), db, other), "another attempt of the same fact does not")
	})
}

func TestRecordSQL(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open engine) {
		db := open(t, database.Options{})
		r := txlog.NewResolver(db)
		run := func(at halfbox.Attempt) error {
			local := database.SQLLocal(func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error {
				return txlog.RecordSQL(ctx, tx, at, typ, "shelf-7")
			})
			return db.InTx(t.Context(), func(tx *gorm.DB) error { return local(tx, at) })
		}
		at, voided := newAttempt(t), newAttempt(t)
		require.NoError(t, run(at))
		require.NoError(t, r.Bury(t.Context(), half(voided, 0)))
		require.ErrorIs(t, run(voided), halfbox.ErrVoided)
		require.ErrorIs(t, r.Bury(t.Context(), half(at, 0)), checkback.ErrTaken)
		require.ErrorIs(t, r.Bury(t.Context(), half(voided, 0)), checkback.ErrTaken)
		require.Equal(t, map[string]string{at.MsgID: "COMMITTED", voided.MsgID: "VOID"}, states(t, db))
	})
}

// While the local transaction is open an old half message is answered UNKNOWN, and then by its row.
func TestLocalTransactionStillOpen(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open engine) {
		db := open(t, database.Options{})
		c := newChecker(t, open(t, database.Options{LockWait: time.Second}))
		at := newAttempt(t)
		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			if err := txlog.Record(tx, at, typ, "shelf-7"); err != nil {
				return err
			}
			began := time.Now()
			require.Equal(t, checkback.Unknown, c.Check(context.Background(), half(at, time.Hour)))
			require.Less(t, time.Since(began), wait/2)
			return nil
		}))
		// Another checker: this one leaves a database alone for a second that was slow to say that it is up.
		require.Equal(t, checkback.Commit, newChecker(t, db).Check(t.Context(), half(at, time.Hour)))
	})
}

// Whatever statement of a check the database fails, nothing is guessed.
func TestDatabaseError(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open engine) {
		down := errors.New("injected: database is down")
		for _, failing := range []string{"SELECT", "INSERT"} {
			c := newChecker(t, open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
				if strings.HasPrefix(query, failing) && strings.Contains(query, "t_tx_log") {
					return down
				}
				return nil
			}}}))
			require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(newAttempt(t), time.Hour)), failing)
		}
	})
}

func newPurger(t testing.TB, c txlog.PurgerConfig) (*txlog.Purger, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	c.Registerer = reg
	p, err := txlog.NewPurger(c)
	require.NoError(t, err)
	return p, reg
}

// at is an attempt of some time ago, and age that of its row.
func rowOf(t testing.TB, db *database.DB, attempt, age time.Duration) string {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	for i, ms := 5, time.Now().Add(-attempt).UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		id[i] = byte(ms)
	}
	require.NoError(t, db.Write.Exec("INSERT INTO t_tx_log (tx_id, state, delivery, biz_type, biz_no, created_at) VALUES (?, 'COMMITTED', 'txmsg', ?, 'x', ?)",
		id.String(), typ, time.Now().UTC().Add(-age).Truncate(time.Microsecond)).Error)
	return id.String()
}

func TestPurge(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open engine) {
		const week = 7 * 24 * time.Hour
		db := open(t, database.Options{})
		kept := map[string]string{}
		keep := func(id string) { kept[id] = "COMMITTED" }
		keep(rowOf(t, db, 0, 0))
		keep(rowOf(t, db, week-time.Minute, week-time.Minute))
		for range 3 { // young tombstones of old attempts, among rows to delete
			keep(rowOf(t, db, 2*week, time.Hour))
			for range 4 {
				rowOf(t, db, week+time.Minute, week+time.Minute)
				rowOf(t, db, 3*week, 3*week)
			}
		}
		p, reg := newPurger(t, txlog.PurgerConfig{DB: db, Batch: 5})
		n, err := p.Purge(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 24, n)
		require.Equal(t, kept, states(t, db))
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(
			"# HELP halfbox_txlog_purged_total Rows of t_tx_log deleted after their retention.\n# TYPE halfbox_txlog_purged_total counter\nhalfbox_txlog_purged_total 24\n"),
			"halfbox_txlog_purged_total"))
		n, err = p.Purge(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

// The loop survives a round that fails, and ends when it is told to.
func TestPurgerGoesOn(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open engine) {
		fails := 2
		db := open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if strings.Contains(query, "tx_id > ?") && fails > 0 {
				fails--
				return errors.New("injected: database is down")
			}
			return nil
		}}})
		old := rowOf(t, db, 1000*time.Hour, 1000*time.Hour)
		p, reg := newPurger(t, txlog.PurgerConfig{DB: db, Interval: 10 * time.Millisecond})
		require.NoError(t, p.Start())
		require.Eventually(t, func() bool { return states(t, db)[old] == "" }, wait, 5*time.Millisecond)
		require.NoError(t, p.Stop(t.Context()))
		require.NoError(t, p.Stop(t.Context()))
		text := "# HELP halfbox_txlog_purge_errors_total Looks at t_tx_log that the database ended.\n# TYPE halfbox_txlog_purge_errors_total counter\nhalfbox_txlog_purge_errors_total 2\n"
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(text), "halfbox_txlog_purge_errors_total"))
	})
}

func TestNewPurgerRefuses(t *testing.T) {
	t.Parallel()
	db := &database.DB{}
	for complaint, c := range map[string]txlog.PurgerConfig{
		"DB":        {},
		"Retention": {DB: db, Retention: 72 * time.Hour},
		"Batch":     {DB: db, Batch: -1},
		"Interval":  {DB: db, Interval: -1},
	} {
		_, err := txlog.NewPurger(c)
		require.ErrorContains(t, err, complaint)
	}
}

// Every statement finds its rows by the primary key, on both engines, at a size where that matters.
func TestEveryStatementUsesThePrimaryKey(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open engine) {
		db := open(t, database.Options{})
		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			for range 40 {
				values := make([]string, 100)
				for i := range values {
					values[i] = fmt.Sprintf("('%s', 'COMMITTED', 'txmsg', 'x', 'x', '2020-01-01 00:00:00')", uuid.Must(uuid.NewV7()))
				}
				if err := tx.Exec("INSERT INTO t_tx_log (tx_id, state, delivery, biz_type, biz_no, created_at) VALUES " + strings.Join(values, ", ")).Error; err != nil {
					return err
				}
			}
			return nil
		}))
		for _, statement := range []string{
			"SELECT state FROM t_tx_log WHERE tx_id = 'x'",
			"SELECT tx_id FROM t_tx_log WHERE tx_id > '' AND tx_id < '0002' ORDER BY tx_id LIMIT 500",
			"DELETE FROM t_tx_log WHERE tx_id >= '0001' AND tx_id <= '0002' AND created_at < " + db.Dialect.Now(),
		} {
			if db.Dialect == database.SQLite {
				var plan []struct{ Detail string }
				require.NoError(t, db.Read.Raw("EXPLAIN QUERY PLAN "+statement).Scan(&plan).Error)
				require.Len(t, plan, 1, statement)
				require.Contains(t, plan[0].Detail, "SEARCH t_tx_log USING", statement)
				continue
			}
			if strings.HasPrefix(statement, "SELECT state") {
				continue // a constant that is not there has no plan on MySQL
			}
			var plan struct{ Key, Type string }
			require.NoError(t, db.Read.Raw("EXPLAIN FORMAT=TRADITIONAL "+statement).Scan(&plan).Error)
			require.Equal(t, []string{"PRIMARY", "range"}, []string{plan.Key, plan.Type}, statement)
		}
	})
}
