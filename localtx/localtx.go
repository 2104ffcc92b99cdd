package localtx

import (
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// DB is a database of local transactions. It is safe for concurrent use.
type DB = database.DB

// Options tune a database; the zero value is what production uses.
type Options = database.Options

// Dialect says which SQL a database speaks.
type Dialect = database.Dialect

// UniqueKey recognises a violation of one unique key, by the errors of both dialects.
type UniqueKey = database.UniqueKey

// Line is one package's migrations; packages outbox and checkback have theirs. Apply one with DB.Migrate.
type Line = database.Line

// The dialects.
const (
	MySQL  = database.MySQL
	SQLite = database.SQLite
)

// OpenMySQL opens the schema named by dsn (go-sql-driver/mysql form), which is completed as by CompleteDSN. It does
// not connect yet.
func OpenMySQL(dsn string, o Options) (*DB, error) { return database.OpenMySQL(dsn, o) }

// OpenSQLite opens the database file at path and creates it when it is missing; its folder must exist.
func OpenSQLite(path string, o Options) (*DB, error) { return database.OpenSQLite(path, o) }

// CompleteDSN adds to a MySQL DSN what it lacks, and refuses one that asks for the opposite. lockWait bounds how long
// a statement waits for another transaction's lock; zero means 2 s. Open your own pool with it, then use FromSQL.
func CompleteDSN(dsn string, lockWait time.Duration) (string, error) {
	if lockWait == 0 {
		lockWait = 2 * time.Second
	}
	cfg, err := database.CompleteDSN(dsn, lockWait)
	if err != nil {
		return "", err
	}
	return cfg.FormatDSN(), nil
}

// FromSQL makes a DB of a pool that you have opened and go on to own: DB.Close leaves it open. It connects, and
// refuses a pool whose sessions lack what the guarantees need, with the names of the settings and the remedy. What no
// session tells, CompleteDSN sets: the driver's timeouts. Of o only Logger and SlowQuery are used.
func FromSQL(ctx context.Context, pool *sql.DB, d Dialect, o Options) (*DB, error) {
	return database.Attach(ctx, pool, d, o)
}

// FromGorm is FromSQL for a pool under gorm: local transactions get a handle with your configuration, plugins and
// logger.
func FromGorm(ctx context.Context, g *gorm.DB) (*DB, error) { return database.AttachGorm(ctx, g) }

// SQL makes a local transaction's function of one that wants database/sql. It gets the very transaction that carries
// the event, and a context that ends at the deadline of the local transaction: put it into every statement.
//
// fn must not commit or roll back; returning nil commits. A fn that ends the transaction itself has an unknown
// outcome: halfbox.ErrUnknown.
func SQL(fn func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error) func(tx *gorm.DB, at halfbox.Attempt) error {
	return database.SQLLocal(fn)
}

// IsDuplicate reports whether err is a duplicate entry for any unique key, on either dialect.
func IsDuplicate(err error) bool { return database.IsDuplicate(err) }
