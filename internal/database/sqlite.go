package database

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	libtnb "github.com/libtnb/sqlite"
	"modernc.org/sqlite"
)

// OpenSQLite opens the database file at path and creates it when it is missing; its folder must exist.
func OpenSQLite(path string, o Options) (*DB, error) {
	o = o.withDefaults(4)
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db := &DB{Dialect: SQLite}
	writer, err := openSQLitePool(sqliteDSN(abs, o, false), o, 1)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.pools = append(db.pools, writer)
	// The first connection creates the file and switches it to WAL; a reader could do neither.
	if err := connectFirst(writer, o.LockWait); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	reader, err := openSQLitePool(sqliteDSN(abs, o, true), o, o.MaxOpen)
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.pools = append(db.pools, reader)
	if db.Write, err = openGorm(libtnb.New(libtnb.Config{Conn: writer}), o); err == nil {
		db.Read, err = openGorm(libtnb.New(libtnb.Config{Conn: reader}), o)
	}
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return db, nil
}

// connectFirst makes a pool's first connection. While another process switches the file to WAL SQLite refuses to do it
// as well, at once and whatever the busy timeout is.
func connectFirst(pool *sql.DB, lockWait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	for {
		err := pool.PingContext(context.Background())
		if !IsLockConflict(err) || !pause(ctx, 20) {
			return err
		}
	}
}

func openSQLitePool(dsn string, o Options, maxOpen int) (*sql.DB, error) {
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	return openPool(c, o, maxOpen), nil
}

func sqliteDSN(path string, o Options, readOnly bool) string {
	q := url.Values{}
	q.Set("_busy_timeout", strconv.FormatInt(o.LockWait.Milliseconds(), 10))
	q.Set("_txlock", "immediate")
	q.Set("_time_format", "sqlite")
	q.Set("_timezone", "UTC")
	q.Set("_texttotime", "1")
	// FULL syncs the write-ahead log at every commit: nothing acknowledged is lost by a power cut.
	q.Add("_pragma", "journal_mode(WAL)")
	q.Add("_pragma", "synchronous(FULL)")
	if readOnly {
		q.Add("_pragma", "query_only(1)")
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}
