package localtx_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	libtnb "github.com/libtnb/sqlite"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/localtx"
)

// gorm never ends the goroutine of its cache of prepared statements.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

const goodSQLite = "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(2000)&_txlock=immediate"

// pool opens a database as an importer does, with database/sql alone.
func pool(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func file(t testing.TB) string { return "file:" + filepath.Join(t.TempDir(), "own.db") }

func completed(t testing.TB, dsn string) string {
	t.Helper()
	dsn, err := localtx.CompleteDSN(dsn, 0)
	require.NoError(t, err)
	return dsn
}

// onHandles runs a test on every way to a handle, with a table t (id) in it.
func onHandles(t *testing.T, test func(t *testing.T, db *localtx.DB)) {
	quiet := &gorm.Config{Logger: logger.Discard}
	for name, open := range map[string]func(t *testing.T) (*localtx.DB, error){
		"sqlite pool": func(t *testing.T) (*localtx.DB, error) {
			return localtx.FromSQL(t.Context(), pool(t, "sqlite", file(t)+goodSQLite), localtx.SQLite, localtx.Options{})
		},
		"mysql pool": func(t *testing.T) (*localtx.DB, error) {
			return localtx.FromSQL(t.Context(), pool(t, "mysql", completed(t, enginetest.MySQL(t))), localtx.MySQL, localtx.Options{})
		},
		"sqlite gorm": func(t *testing.T) (*localtx.DB, error) {
			g, err := gorm.Open(libtnb.New(libtnb.Config{Conn: pool(t, "sqlite", file(t)+goodSQLite)}), quiet)
			require.NoError(t, err)
			return localtx.FromGorm(t.Context(), g)
		},
		"mysql gorm, prepared": func(t *testing.T) (*localtx.DB, error) {
			g, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool(t, "mysql", completed(t, enginetest.MySQL(t)))}),
				&gorm.Config{Logger: logger.Discard, PrepareStmt: true})
			require.NoError(t, err)
			return localtx.FromGorm(t.Context(), g)
		},
		"sqlite file": func(t *testing.T) (*localtx.DB, error) {
			return localtx.OpenSQLite(filepath.Join(t.TempDir(), "own.db"), localtx.Options{})
		},
		"mysql dsn": func(t *testing.T) (*localtx.DB, error) {
			return localtx.OpenMySQL(enginetest.MySQL(t), localtx.Options{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := open(t)
			require.NoError(t, err)
			require.NoError(t, db.Write.Exec("CREATE TABLE t (id INTEGER PRIMARY KEY)").Error)
			defer func() { require.NoError(t, db.Close()) }()
			test(t, db)
		})
	}
}

func ids(t testing.TB, db *localtx.DB) []int {
	t.Helper()
	found := []int{}
	require.NoError(t, db.Read.Raw("SELECT id FROM t ORDER BY id").Scan(&found).Error)
	return found
}

func TestLocalTransactionsOnEveryHandle(t *testing.T) {
	t.Parallel()
	onHandles(t, func(t *testing.T, db *localtx.DB) {
		cause := errors.New("no stock left")
		insert := func(tx *gorm.DB, id int) error { return tx.Table("t").Create(map[string]any{"id": id}).Error }
		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) }))
		err := db.InTx(t.Context(), func(tx *gorm.DB) error { return errors.Join(insert(tx, 2), cause) })
		require.ErrorIs(t, err, halfbox.ErrRolledBack)
		require.ErrorIs(t, err, cause)
		err = db.InTx(t.Context(), func(tx *gorm.DB) error { return insert(tx, 1) })
		require.True(t, localtx.IsDuplicate(err), "%v", err)
		require.Equal(t, []int{1}, ids(t, db))
	})
}

// inSQL runs fn as a strategy would.
func inSQL(ctx context.Context, db *localtx.DB, fn func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error) error {
	local := localtx.SQL(fn)
	return db.InTx(ctx, func(tx *gorm.DB) error { return local(tx, halfbox.Attempt{MsgID: "id"}) })
}

func TestSQLGetsTheTransactionItself(t *testing.T) {
	t.Parallel()
	onHandles(t, func(t *testing.T, db *localtx.DB) {
		cause := errors.New("no stock left")
		insert := func(ctx context.Context, tx *sql.Tx, id int) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO t (id) VALUES (?)", id)
			return err
		}
		require.NoError(t, inSQL(t.Context(), db, func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error {
			require.Equal(t, "id", at.MsgID)
			return insert(ctx, tx, 1)
		}))
		err := inSQL(t.Context(), db, func(ctx context.Context, tx *sql.Tx, _ halfbox.Attempt) error {
			return errors.Join(insert(ctx, tx, 2), cause)
		})
		require.ErrorIs(t, err, halfbox.ErrRolledBack)
		require.ErrorIs(t, err, cause)
		require.NotErrorIs(t, err, halfbox.ErrUnknown)

		// The caller goes away: before a statement, after the last one, and with fn looking away.
		for name, fn := range map[string]func(ctx context.Context, cancel func(), tx *sql.Tx) error{
			"before a statement": func(ctx context.Context, cancel func(), tx *sql.Tx) error { cancel(); return insert(ctx, tx, 3) },
			"after the last":     func(ctx context.Context, cancel func(), tx *sql.Tx) error { defer cancel(); return insert(ctx, tx, 3) },
			"looking away": func(ctx context.Context, cancel func(), tx *sql.Tx) error {
				cancel()
				_ = insert(ctx, tx, 3)
				return nil
			},
		} {
			outer, cancel := context.WithCancel(t.Context())
			err := inSQL(outer, db, func(ctx context.Context, tx *sql.Tx, _ halfbox.Attempt) error { return fn(ctx, cancel, tx) })
			require.ErrorIs(t, err, halfbox.ErrRolledBack, name)
			require.ErrorIs(t, err, context.Canceled, name)
			cancel()
		}
		require.PanicsWithValue(t, "out of cheese", func() {
			_ = inSQL(t.Context(), db, func(ctx context.Context, tx *sql.Tx, _ halfbox.Attempt) error {
				require.NoError(t, insert(ctx, tx, 4))
				panic("out of cheese")
			})
		})
		require.Equal(t, []int{1}, ids(t, db))
	})
}

// A function that ends the transaction itself is never reported as rolled back, whatever it returns: it may have
// committed.
func TestSQLFunctionThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	onHandles(t, func(t *testing.T, db *localtx.DB) {
		id := 0
		for _, commit := range []bool{true, false} {
			for _, result := range []error{nil, errors.New("no stock left"), context.Canceled} {
				id++
				outer, cancel := context.WithCancel(t.Context())
				err := inSQL(outer, db, func(ctx context.Context, tx *sql.Tx, _ halfbox.Attempt) error {
					_, err := tx.ExecContext(ctx, "INSERT INTO t (id) VALUES (?)", id)
					require.NoError(t, err)
					if commit {
						require.NoError(t, tx.Commit())
					} else {
						require.NoError(t, tx.Rollback())
					}
					if errors.Is(result, context.Canceled) {
						cancel()
					}
					return result
				})
				cancel()
				require.ErrorIs(t, err, halfbox.ErrUnknown)
				require.NotErrorIs(t, err, halfbox.ErrRolledBack)
			}
		}
		require.Equal(t, []int{1, 2, 3}, ids(t, db))
		require.NoError(t, inSQL(t.Context(), db, func(ctx context.Context, tx *sql.Tx, _ halfbox.Attempt) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO t (id) VALUES (10)")
			return err
		}), "the connection goes on")
	})
}

func TestSQLOutsideOfALocalTransaction(t *testing.T) {
	t.Parallel()
	db, err := localtx.OpenSQLite(filepath.Join(t.TempDir(), "own.db"), localtx.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	err = localtx.SQL(func(context.Context, *sql.Tx, halfbox.Attempt) error { return nil })(db.Write, halfbox.Attempt{})
	require.ErrorContains(t, err, "not a local transaction")
}

func TestFromSQLRefusesASQLitePoolByName(t *testing.T) {
	t.Parallel()
	for change, complaint := range map[string]string{
		"_pragma=journal_mode(WAL)":   "journal_mode is delete",
		"_pragma=synchronous(FULL)":   "",
		"_pragma=busy_timeout(2000)":  "busy_timeout is 0",
		"_pragma=synchronous(NORMAL)": "synchronous is 1",
		"_pragma=query_only(1)":       "query_only is 1",
	} {
		dsn := strings.Replace(goodSQLite, change, "_pragma=foreign_keys(0)", 1)
		if dsn == goodSQLite {
			dsn += "&" + change
		}
		_, err := localtx.FromSQL(t.Context(), pool(t, "sqlite", file(t)+dsn), localtx.SQLite, localtx.Options{})
		if complaint == "" { // FULL is SQLite's default
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, complaint)
		require.ErrorContains(t, err, "_pragma=journal_mode(WAL)", "the remedy")
	}
}

func TestFromSQLRefusesAMySQLPoolByName(t *testing.T) {
	t.Parallel()
	good, err := mysql.ParseDSN(completed(t, enginetest.MySQL(t)))
	require.NoError(t, err)
	for complaint, change := range map[string]func(*mysql.Config){
		"parseTime":                   func(c *mysql.Config) { c.ParseTime = false },
		"clientFoundRows":             func(c *mysql.Config) { c.ClientFoundRows = false },
		"time_zone is \"+08:00\"":     func(c *mysql.Config) { c.Params["time_zone"] = "'+08:00'" },
		"REPEATABLE-READ":             func(c *mysql.Config) { c.Params["transaction_isolation"] = "'REPEATABLE-READ'" },
		"wait_timeout is 28800":       func(c *mysql.Config) { c.Params["wait_timeout"] = "28800" },
		"innodb_lock_wait_timeout is": func(c *mysql.Config) { c.Params["innodb_lock_wait_timeout"] = "50" },
		"autocommit is off":           func(c *mysql.Config) { c.Params["autocommit"] = "0" },
	} {
		bad := good.Clone()
		change(bad)
		_, err := localtx.FromSQL(t.Context(), pool(t, "mysql", bad.FormatDSN()), localtx.MySQL, localtx.Options{})
		require.ErrorContains(t, err, complaint)
		require.ErrorContains(t, err, "CompleteDSN", "the remedy")
	}
}

func TestFromGormRefusesTranslatedErrors(t *testing.T) {
	t.Parallel()
	g, err := gorm.Open(libtnb.New(libtnb.Config{Conn: pool(t, "sqlite", file(t)+goodSQLite)}), &gorm.Config{TranslateError: true, Logger: logger.Discard})
	require.NoError(t, err)
	_, err = localtx.FromGorm(t.Context(), g)
	require.ErrorContains(t, err, "TranslateError")
}

func TestFromSQLNamesAnUnknownDialect(t *testing.T) {
	t.Parallel()
	_, err := localtx.FromSQL(t.Context(), pool(t, "sqlite", file(t)), "oracle", localtx.Options{})
	require.ErrorContains(t, err, "oracle")
}

// The pool stays its owner's.
func TestCloseLeavesTheOwnersPoolOpen(t *testing.T) {
	t.Parallel()
	p := pool(t, "sqlite", file(t)+goodSQLite)
	db, err := localtx.FromSQL(t.Context(), p, localtx.SQLite, localtx.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, p.PingContext(t.Context()))
}

func TestCompleteDSNRefusesTheOpposite(t *testing.T) {
	t.Parallel()
	_, err := localtx.CompleteDSN("u:p@tcp(h:3306)/s?loc=Local", 0)
	require.ErrorContains(t, err, "loc=Local")
}
