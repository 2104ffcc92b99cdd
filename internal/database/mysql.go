package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
)

// sessionWaitTimeout is how long MySQL keeps a session that says nothing, and with it the locks of a frozen
// process's open transaction.
const sessionWaitTimeout = 30 * time.Second

// OpenMySQL opens the schema named by dsn (go-sql-driver/mysql form). It does not connect yet.
// The DSN is completed with what the guarantees need, see CompleteDSN.
func OpenMySQL(dsn string, o Options) (*DB, error) {
	o = o.withDefaults(20)
	cfg, err := CompleteDSN(dsn, o.LockWait)
	if err != nil {
		return nil, err
	}
	if o.TLS != nil {
		cfg.TLS = o.TLS
	}
	if o.LongStatements {
		cfg.ReadTimeout = 0
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("database DSN: %w", redactDSN(err, cfg))
	}
	pool := openPool(mysqlConnector{c}, o, o.MaxOpen)
	// A pooled connection must not outlive the session's wait_timeout at the server.
	pool.SetConnMaxIdleTime(sessionWaitTimeout / 2)
	g, err := openGorm(gormmysql.New(gormmysql.Config{Conn: pool, SkipInitializeWithVersion: true}), o)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	db := &DB{Dialect: MySQL, Write: g, Read: g}
	db.pools = append(db.pools, pool)
	return db, nil
}

// mysqlConnector tells database/sql to try again when a new connection has broken before the driver could log in. The
// driver says so itself for every later packet; here it lets an error of its own out that nobody can compare with.
type mysqlConnector struct{ driver.Connector }

func (c mysqlConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil && err.Error() == "bad connection" {
		err = driver.ErrBadConn
	}
	return conn, err
}

// CompleteDSN parses a DSN and adds what it lacks: parseTime, clientFoundRows, interpolateParams, UTC in driver and
// session, READ COMMITTED, timeouts, a lock wait, and a short session wait_timeout. A DSN that asks for the
// opposite of what the guarantees need is refused with the parameter's name.
func CompleteDSN(dsn string, lockWait time.Duration) (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, badDSN(dsn)
	}
	if cfg.DBName == "" {
		return nil, errors.New("database DSN names no schema: write user:password@tcp(host:3306)/SCHEMA")
	}
	if err := refuseDSN(dsn, cfg); err != nil {
		return nil, err
	}
	cfg.ParseTime = true
	// Affected rows must count the rows matched: a conditional update that rewrites the same value is a hit.
	cfg.ClientFoundRows = true
	// One round trip for each statement instead of three (prepare, execute, close).
	cfg.InterpolateParams = true
	cfg.Loc = time.UTC
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.ReadTimeout == 0 {
		cfg.ReadTimeout = 15 * time.Second // the longest statement; migrations have a pool of their own
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = 15 * time.Second
	}
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	lockSeconds := max(1, int(lockWait.Round(time.Second)/time.Second))
	for name, value := range map[string]string{
		"time_zone":                "'+00:00'",
		"transaction_isolation":    "'READ-COMMITTED'",
		"wait_timeout":             strconv.Itoa(int(sessionWaitTimeout / time.Second)),
		"innodb_lock_wait_timeout": strconv.Itoa(lockSeconds),
	} {
		if _, set := cfg.Params[name]; !set {
			cfg.Params[name] = value
		}
	}
	return cfg, nil
}

func refuseDSN(dsn string, cfg *mysql.Config) error {
	_, asked, err := splitDSN(dsn)
	if err != nil {
		return errors.New("database DSN: parameters cannot be parsed")
	}
	for name, need := range map[string]string{"parseTime": "true", "clientFoundRows": "true", "loc": "UTC", "multiStatements": "false"} {
		if v := asked.Get(name); v != "" && v != need {
			return fmt.Errorf("database DSN: %s=%s cannot be used, remove it or set %s=%s", name, v, name, need)
		}
	}
	if v, ok := cfg.Params["autocommit"]; ok && v != "1" && !strings.EqualFold(v, "true") && !strings.EqualFold(v, "on") {
		return fmt.Errorf("database DSN: autocommit=%s cannot be used, single statements would never be committed", v)
	}
	if tz, ok := cfg.Params["time_zone"]; ok && tz != "'+00:00'" && !strings.EqualFold(tz, "'UTC'") {
		return fmt.Errorf("database DSN: time_zone=%s cannot be used, remove it or set it to '+00:00'", tz)
	}
	return nil
}

// splitDSN cuts a DSN the way the driver does: a password may hold any of "@/?", the part after the last slash none.
func splitDSN(dsn string) (account string, params url.Values, err error) {
	slash := strings.LastIndexByte(dsn, '/') + 1
	_, query, _ := strings.Cut(dsn[slash:], "?")
	params, err = url.ParseQuery(query)
	return dsn[:slash], params, err
}

// badDSN says why the driver cannot parse dsn. The driver's own words may quote what it took for a network or a
// name, which can be the password: they are used only when the part without it is to blame.
func badDSN(dsn string) error {
	account, _, _ := splitDSN(dsn)
	if rest := dsn[len(account):]; strings.Contains(account, "@") && !strings.Contains(rest, "@") {
		if _, err := mysql.ParseDSN("/" + rest); err != nil {
			return fmt.Errorf("database DSN: %w", err)
		}
	}
	return errors.New("database DSN cannot be parsed: write user:password@tcp(host:3306)/SCHEMA")
}

func redactDSN(err error, cfg *mysql.Config) error {
	if cfg.Passwd == "" {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), cfg.Passwd, "***"))
}
