package enginetest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// adminTimeout bounds what the kit itself asks of an engine.
const adminTimeout = 60 * time.Second

// MySQL returns the DSN of an empty schema that no other test has. It is dropped at the end of the test, after
// whatever the test registered later with Cleanup; connections that are still open then are of no account.
func MySQL(t testing.TB) string {
	t.Helper()
	dsn := os.Getenv(EnvMySQL)
	if dsn == "" {
		var err error
		if dsn, err = dockerMySQL(); err != nil {
			missing(t, "MySQL", EnvMySQL, err)
		}
	}
	return newSchema(t, dsn)
}

// MySQLProxy starts a Proxy in front of the server of dsn, and returns the DSN by which clients go through it.
func MySQLProxy(t testing.TB, dsn string) (p *Proxy, through string) {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err)
	require.Equal(t, "tcp", cfg.Net, "network of the MySQL server")
	p = NewProxy(t, cfg.Addr)
	cfg.Addr = p.Addr()
	return p, cfg.FormatDSN()
}

// newSchema makes a schema on the server of dsn.
func newSchema(t testing.TB, dsn string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	require.NoError(t, err, "DSN of the MySQL server for tests")
	name := Name(t, "test")
	require.NoError(t, execAdmin(cfg, "CREATE DATABASE "+name), "MySQL server for tests")
	t.Cleanup(func() {
		// A server that the test itself has stopped needs no cleaning, and one that is gone has said so already.
		if err := execAdmin(cfg, "DROP DATABASE IF EXISTS "+name); err != nil {
			t.Logf("schema %s stays: %v", name, err)
		}
	})
	own := cfg.Clone()
	own.DBName = name
	return own.FormatDSN()
}

// execAdmin runs one statement on a connection of its own, in no schema.
func execAdmin(cfg *mysql.Config, statement string) error {
	cfg = cfg.Clone()
	cfg.DBName = ""
	cfg.Timeout = 5 * time.Second
	cfg.ReadTimeout = adminTimeout
	// A connection of the test that holds a lock would make DROP DATABASE wait.
	cfg.Params = map[string]string{"lock_wait_timeout": "10"}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return fmt.Errorf("MySQL DSN: %w", err)
	}
	db := sql.OpenDB(connector)
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	_, err = db.ExecContext(ctx, statement)
	return err
}
