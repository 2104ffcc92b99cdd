package database

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"
)

// Options tune a database. The zero value is what production uses.
type Options struct {
	// LockWait bounds how long one statement waits for another transaction's lock. Defaults to 2 s, which is
	// below the default deadline of a local transaction. The pool that answers check-backs uses 1 s.
	LockWait time.Duration
	// MaxOpen limits the connections of the pool: all of them on MySQL, the readers on SQLite.
	// Defaults to 20 on MySQL and 4 on SQLite.
	MaxOpen int
	// TLS encrypts the connections; nil does not, unless the DSN says so. MySQL only.
	TLS *tls.Config
	// LongStatements lets a statement take as long as it needs, for migrations. MySQL only: a server that is gone is
	// noticed by TCP alone then.
	LongStatements bool
	// SlowQuery is the duration from which a statement is logged as slow. Defaults to 500 ms.
	SlowQuery time.Duration
	// Logger defaults to a no-op.
	Logger *zap.Logger
	// Hooks see every statement; for tests and crash points. The zero value does nothing.
	Hooks Hooks
}

func (o Options) withDefaults(maxOpen int) Options {
	if o.LockWait == 0 {
		o.LockWait = 2 * time.Second
	}
	if o.MaxOpen == 0 {
		o.MaxOpen = maxOpen
	}
	if o.SlowQuery == 0 {
		o.SlowQuery = 500 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	Dialect Dialect
	// Write is for transactions and for single statements that write.
	Write *gorm.DB
	// Read is for statements that only read, outside of any transaction of the caller.
	Read *gorm.DB

	pools    []*sql.DB
	borrowed bool // the pools are not ours to close
}

// Close closes every connection; it waits for those in use. A DB made by Attach leaves its pool to whoever opened it.
func (db *DB) Close() error {
	if db.borrowed {
		return nil
	}
	var errs []error
	for _, p := range db.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Ping reports nil when the database answers.
func (db *DB) Ping(ctx context.Context) error {
	// The last pool is the readers' on SQLite: readiness must not queue behind the one writer.
	return db.pools[len(db.pools)-1].PingContext(ctx)
}

// SQL is the pool under Write.
func (db *DB) SQL() *sql.DB { return db.pools[0] }

func openPool(c driver.Connector, o Options, maxOpen int) *sql.DB {
	if o.Hooks.active() {
		c = hookedConnector{Connector: c, hooks: o.Hooks}
	}
	pool := sql.OpenDB(c)
	pool.SetMaxOpenConns(maxOpen)
	pool.SetMaxIdleConns(maxOpen)
	return pool
}

func openGorm(d gorm.Dialector, o Options) (*gorm.DB, error) {
	db, err := gorm.Open(d, &gorm.Config{
		// We open transactions ourselves; gorm would wrap each single write in one more.
		SkipDefaultTransaction:   true,
		DisableNestedTransaction: true,
		DisableAutomaticPing:     true,
		NowFunc:                  func() time.Time { return time.Now().UTC() },
		Logger:                   gormLog{log: o.Logger, slow: o.SlowQuery},
	})
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return db, nil
}
