package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	libtnb "github.com/libtnb/sqlite"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
)

// The longest waits that a pool opened by somebody else may have; ours are far shorter, see CompleteDSN.
const (
	maxSessionWait = 5 * time.Minute
	maxLockWait    = 10 * time.Second
)

// Attach makes a DB of a pool that the caller has opened and goes on to own: Close leaves it open. It connects, and
// refuses a pool whose sessions lack what the guarantees need. Of o only Logger and SlowQuery are used.
func Attach(ctx context.Context, pool *sql.DB, d Dialect, o Options) (*DB, error) {
	o = o.withDefaults(0)
	var dialector gorm.Dialector
	switch d {
	case MySQL:
		dialector = gormmysql.New(gormmysql.Config{Conn: pool, SkipInitializeWithVersion: true})
	case SQLite:
		dialector = libtnb.New(libtnb.Config{Conn: pool})
	default:
		return nil, fmt.Errorf("attach database: dialect %q is neither %q nor %q", d, MySQL, SQLite)
	}
	if err := checkPool(ctx, pool, d); err != nil {
		return nil, err
	}
	g, err := openGorm(dialector, o)
	if err != nil {
		return nil, err
	}
	return attached(d, g, pool), nil
}

// AttachGorm is Attach for a pool under gorm: local transactions get a handle with the caller's configuration,
// plugins and logger.
func AttachGorm(ctx context.Context, g *gorm.DB) (*DB, error) {
	d := Dialect(g.Name())
	if d != MySQL && d != SQLite {
		return nil, fmt.Errorf("attach database: gorm speaks %q, not %q or %q", d, MySQL, SQLite)
	}
	if g.TranslateError {
		return nil, errors.New("attach database: open gorm without TranslateError, it hides which unique key was hit")
	}
	pool, err := g.DB()
	if err != nil {
		return nil, fmt.Errorf("attach database: %w", err)
	}
	if err := checkPool(ctx, pool, d); err != nil {
		return nil, err
	}
	return attached(d, g.Session(&gorm.Session{NewDB: true, SkipDefaultTransaction: true}), pool), nil
}

func attached(d Dialect, g *gorm.DB, pool *sql.DB) *DB {
	return &DB{Dialect: d, Write: g, Read: g, pools: []*sql.DB{pool}, borrowed: true}
}

// checkPool refuses a pool with the names of the settings that are wrong, and what to do about them.
func checkPool(ctx context.Context, pool *sql.DB, d Dialect) error {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("attach database: %w", err)
	}
	defer conn.Close()
	check, remedy := checkMySQL, "open it with the DSN that CompleteDSN makes"
	if d == SQLite {
		check, remedy = checkSQLite, "open it with _pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(2000)&_txlock=immediate"
	}
	wrong, err := check(ctx, conn)
	if err == nil && len(wrong) == 0 {
		wrong, err = checkAnswers(ctx, conn, d)
	}
	if err != nil {
		return fmt.Errorf("attach database: look at its session: %w", err)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("attach database: %s: %s", strings.Join(wrong, ", "), remedy)
	}
	return nil
}

func checkMySQL(ctx context.Context, conn *sql.Conn) (wrong []string, err error) {
	var zone, isolation string
	var autocommit bool
	var sessionWait, lockWait int64
	err = conn.QueryRowContext(ctx, "SELECT @@time_zone, @@transaction_isolation, @@autocommit, @@wait_timeout, @@innodb_lock_wait_timeout").
		Scan(&zone, &isolation, &autocommit, &sessionWait, &lockWait)
	if err != nil {
		return nil, err
	}
	bad := func(is bool, what string) {
		if is {
			wrong = append(wrong, what)
		}
	}
	bad(zone != "+00:00" && !strings.EqualFold(zone, "UTC"), fmt.Sprintf("time_zone is %q, not '+00:00'", zone))
	bad(isolation != "READ-COMMITTED", fmt.Sprintf("transaction_isolation is %s, not READ-COMMITTED", isolation))
	bad(!autocommit, "autocommit is off")
	bad(sessionWait > int64(maxSessionWait/time.Second),
		fmt.Sprintf("wait_timeout is %d s, over %v: a frozen process would hold its locks as long", sessionWait, maxSessionWait))
	bad(lockWait > int64(maxLockWait/time.Second), fmt.Sprintf("innodb_lock_wait_timeout is %d s, over %v", lockWait, maxLockWait))
	var now time.Time
	if err := conn.QueryRowContext(ctx, "SELECT UTC_TIMESTAMP(6)").Scan(&now); err != nil {
		bad(true, "parseTime is not true")
	} else {
		_, offset := now.Zone()
		bad(offset != 0, "loc is not UTC")
	}
	return wrong, nil
}

func checkSQLite(ctx context.Context, conn *sql.Conn) (wrong []string, err error) {
	for _, pragma := range []struct {
		name string
		good func(string) bool
		want string
	}{
		{"journal_mode", func(v string) bool { return strings.EqualFold(v, "wal") }, "WAL"},
		{"synchronous", func(v string) bool { return v == "2" || v == "3" }, "FULL"},
		{"busy_timeout", func(v string) bool { return v != "0" }, "above 0"},
		{"query_only", func(v string) bool { return v == "0" }, "off"},
	} {
		var value string
		if err := conn.QueryRowContext(ctx, "PRAGMA "+pragma.name).Scan(&value); err != nil {
			return nil, err
		}
		if !pragma.good(value) {
			wrong = append(wrong, fmt.Sprintf("%s is %s, not %s", pragma.name, value, pragma.want))
		}
	}
	return wrong, nil
}

// probe is a table of the session alone.
const probe = "halfbox_probe"

// checkAnswers tries what no setting tells: whether an update counts the rows it matched, and whether the driver's
// errors are understood.
func checkAnswers(ctx context.Context, conn *sql.Conn, d Dialect) (wrong []string, err error) {
	if _, err := conn.ExecContext(ctx, "CREATE TEMPORARY TABLE "+probe+" (id INTEGER PRIMARY KEY)"); err != nil {
		return nil, err
	}
	defer func() {
		_, dropped := conn.ExecContext(context.WithoutCancel(ctx), "DROP TABLE "+probe)
		err = errors.Join(err, dropped)
	}()
	if _, err := conn.ExecContext(ctx, "INSERT INTO "+probe+" (id) VALUES (1)"); err != nil {
		return nil, err
	}
	res, err := conn.ExecContext(ctx, "UPDATE "+probe+" SET id = 1 WHERE id = 1")
	if err != nil {
		return nil, err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		wrong = append(wrong, "clientFoundRows is not true")
	}
	_, err = conn.ExecContext(ctx, "INSERT INTO "+probe+" (id) VALUES (1)")
	if !IsDuplicate(err) {
		wrong = append(wrong, fmt.Sprintf("the driver is not the one that halfbox knows for %s: a duplicate key is %T", d, err))
	}
	return wrong, nil
}
