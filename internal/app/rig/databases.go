package rig

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/netfault"
)

// openDatabases makes the schemas and migrates them. SQLite needs neither: the service makes its files.
func (s *site) openDatabases(ctx context.Context, own string, proxied bool) error {
	if s.cfg.Database.Driver != "mysql" {
		return nil
	}
	dsns := []*configs.Secret{&s.cfg.Database.OrderDSN, &s.cfg.Database.PointsDSN}
	for i, m := range app.MigratedDatabases() {
		if err := s.makeSchema(ctx, dsns[i], own+"_"+m.Name); err != nil {
			return err
		}
	}
	if !proxied {
		return nil
	}
	for _, dsn := range dsns {
		cfg, err := mysql.ParseDSN(string(*dsn))
		if err != nil {
			return err
		}
		if s.database == nil {
			if s.database, err = netfault.NewProxy(cfg.Addr); err != nil {
				return err
			}
			proxy := s.database
			s.onClose(func(context.Context) error { proxy.Close(); return nil })
		}
		if cfg.Addr != s.database.Target() {
			continue // another server: the fault is in the order database's
		}
		cfg.Addr = s.database.Addr()
		*dsn = configs.Secret(cfg.FormatDSN())
	}
	return nil
}

// makeSchema makes a schema on the server of dsn, and lets dsn name it.
func (s *site) makeSchema(ctx context.Context, dsn *configs.Secret, name string) error {
	plain, err := mysql.ParseDSN(string(*dsn))
	if err != nil {
		return err
	}
	connector, err := s.engines.serverOf(*dsn)
	if err != nil {
		return err
	}
	exec := func(ctx context.Context, statement string) error {
		db := sql.OpenDB(connector)
		defer func() { _ = db.Close() }()
		_, err := db.ExecContext(ctx, statement)
		return err
	}
	// Registered first: a CREATE whose answer is lost has made it.
	s.onClose(func(ctx context.Context) error {
		if err := exec(ctx, "DROP DATABASE IF EXISTS "+name); err != nil {
			return fmt.Errorf("schema %s is left: %w", name, err)
		}
		return nil
	})
	if err := exec(ctx, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("make schema %s: %w: the user needs the right to create and drop schemas: GRANT ALL ON `%s%%`.* TO the user", name, err, Prefix)
	}
	plain.DBName = name
	*dsn = configs.Secret(plain.FormatDSN())
	return nil
}

// serverOf leads to the server of a DSN, without a schema.
func (e *Engines) serverOf(dsn configs.Secret) (driver.Connector, error) {
	cfg, err := database.CompleteDSN(string(dsn), 0)
	if err != nil {
		return nil, err
	}
	if cfg.TLS, err = database.ClientTLS(database.TLSMode(e.Config.Database.TLS), e.Config.Database.TLSCAFile); err != nil {
		return nil, err
	}
	cfg.DBName = ""
	// A connection of the service that holds a lock would make DROP DATABASE wait.
	cfg.Params["lock_wait_timeout"] = "10"
	return mysql.NewConnector(cfg)
}

// openToLook opens the database "order" or "points" beside the service. A proxy is left out, so that the judge sees
// what is there whatever the fault.
func (s *site) openToLook(name string) (*database.DB, error) {
	cfg := s.cfg
	if s.database != nil {
		for _, dsn := range []*configs.Secret{&cfg.Database.OrderDSN, &cfg.Database.PointsDSN} {
			parsed, err := mysql.ParseDSN(string(*dsn))
			if err != nil {
				return nil, err
			}
			if parsed.Addr == s.database.Addr() {
				parsed.Addr = s.database.Target()
				*dsn = configs.Secret(parsed.FormatDSN())
			}
		}
	}
	for _, m := range app.MigratedDatabases() {
		if m.Name == name {
			return m.Look(cfg)
		}
	}
	return nil, fmt.Errorf("there is no database %q", name)
}

// describeDatabase names the server and how durable its commits are.
func (e *Engines) describeDatabase(ctx context.Context) string {
	if !e.MySQL() {
		return "SQLite, inside the service's process, WAL, synchronous=FULL, one file each for orders and points"
	}
	// The configured schema need not be there, and is left alone.
	cfg := e.Config
	dsn, err := mysql.ParseDSN(string(cfg.Database.OrderDSN))
	if err != nil {
		return "MySQL"
	}
	dsn.DBName = "information_schema"
	cfg.Database.OrderDSN = configs.Secret(dsn.FormatDSN())
	db, err := app.OrderDatabase().Look(cfg)
	if err != nil {
		return "MySQL: " + err.Error()
	}
	defer func() { _ = db.Close() }()
	var v struct {
		Version     string
		Flush, Sync int
	}
	err = db.Read.WithContext(ctx).Raw("SELECT VERSION() AS version, @@innodb_flush_log_at_trx_commit AS flush, @@sync_binlog AS sync").Scan(&v).Error
	if err != nil {
		return "MySQL: " + err.Error()
	}
	return fmt.Sprintf("MySQL %s, innodb_flush_log_at_trx_commit=%d, sync_binlog=%d", v.Version, v.Flush, v.Sync)
}
