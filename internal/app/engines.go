package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/httpapi"
)

// openData makes the data folder of the embedded engines.
func (a *App) openData() error { return makeData(a.cfg) }

func makeData(cfg configs.Config) error {
	if cfg.Database.Driver != "sqlite" && !cfg.RocketMQ.Embedded() {
		return nil
	}
	err := os.MkdirAll(cfg.Data, 0o750)
	if err == nil {
		err = tryWrite(cfg.Data)
	}
	if err != nil {
		return &SetupError{fmt.Errorf("data folder %s cannot be written: %w", cfg.Data, err), "choose another one with --data, or give this user the right to write there"}
	}
	return nil
}

func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".halfbox-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// openBroker opens the in-process broker, unless a cluster is configured.
func (a *App) openBroker() error {
	if !a.cfg.RocketMQ.Embedded() {
		a.nameServers = a.cfg.RocketMQ.NameServers
		return nil
	}
	b, err := OpenBroker(a.cfg, broker.Config{Logger: a.log.Named("broker"), Registerer: a.reg})
	if err != nil {
		return err
	}
	a.onStop("broker", b.Stop)
	a.onStart("broker", b.Start)
	a.broker, a.nameServers, a.addrs.Broker = b, []string{b.Addr()}, b.Addr()
	return nil
}

// OpenBroker opens the in-process broker as it is configured; base holds what is not configuration.
func OpenBroker(cfg configs.Config, base broker.Config) (*broker.Broker, error) {
	base.Dir = filepath.Join(cfg.Data, "broker")
	base.Listen = cfg.Broker.Listen
	base.TransactionTimeout = cfg.Broker.TransactionTimeout
	base.CheckInterval = cfg.Broker.CheckInterval
	base.CheckMax = cfg.Broker.CheckMax
	b, err := broker.Open(base)
	switch {
	case err == nil:
		return b, nil
	case errors.Is(err, broker.ErrStorageInUse):
		return nil, &SetupError{err, "stop the other process, or choose another folder with --data"}
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, &SetupError{err, "stop what listens there, set HALFBOX_BROKER_LISTEN to a free address, or name a running broker with HALFBOX_ROCKETMQ_NAME_SERVERS"}
	}
	return nil, &SetupError{err, "correct what it names: --data chooses the folder, HALFBOX_BROKER_LISTEN the address"}
}

// openDatabases opens the databases that the roles need.
func (a *App) openDatabases() error {
	var err error
	if a.has(RoleAPI) || a.has(RoleRelay) {
		if a.orderDB, err = a.openDatabase("order", database.Options{}); err != nil {
			return err
		}
		if err := a.migrateAtStart(a.orderDB, OrderDatabase()); err != nil {
			return err
		}
	}
	if a.has(RoleAPI) || a.has(RolePoints) {
		if a.pointsDB, err = a.openDatabase("points", database.Options{}); err != nil {
			return err
		}
		return a.migrateAtStart(a.pointsDB, PointsDatabase())
	}
	return nil
}

// openDatabase opens one database and closes it when the application stops.
func (a *App) openDatabase(name string, o database.Options) (*database.DB, error) {
	o.Logger = a.log.Named("database").With(zap.String("database", name))
	if a.inside.SQL != nil {
		o.Hooks = a.inside.SQL(name)
	}
	db, err := openDatabase(a.cfg, name, o)
	if err != nil {
		return nil, err
	}
	a.onStop(name+" database", func(context.Context) error { return db.Close() })
	return db, nil
}

// openDatabase opens the database "order" or "points".
func openDatabase(cfg configs.Config, name string, o database.Options) (*database.DB, error) {
	if cfg.Database.Driver == "mysql" {
		if oneSchema(cfg.Database) {
			return nil, &SetupError{errors.New("database.order_dsn and database.points_dsn name the same schema"), "give each a schema of its own"}
		}
		dsn := map[string]configs.Secret{"order": cfg.Database.OrderDSN, "points": cfg.Database.PointsDSN}[name]
		var err error
		if o.TLS, err = database.ClientTLS(database.TLSMode(cfg.Database.TLS), cfg.Database.TLSCAFile); err != nil {
			return nil, &SetupError{err, "correct database.tls_ca_file"}
		}
		db, err := database.OpenMySQL(string(dsn), o)
		if err != nil {
			return nil, &SetupError{err, "correct database." + name + "_dsn"}
		}
		return db, nil
	}
	db, err := database.OpenSQLite(databaseFile(cfg, name), o)
	if err != nil {
		return nil, &SetupError{err, "check the file, or choose another folder with --data"}
	}
	return db, nil
}

// oneSchema tells whether both DSNs name the same schema. One that cannot be read names none; who opens it says so.
func oneSchema(d configs.Database) bool {
	order, err := mysql.ParseDSN(string(d.OrderDSN))
	if err != nil {
		return false
	}
	points, err := mysql.ParseDSN(string(d.PointsDSN))
	return err == nil && order.Addr == points.Addr && order.DBName == points.DBName
}

func databaseFile(cfg configs.Config, name string) string { return filepath.Join(cfg.Data, name+".db") }

// readyCheck adds a condition to /readyz.
func (a *App) readyCheck(name string, ready func(ctx context.Context) error) {
	a.checks = append(a.checks, httpapi.Check{Name: name, Ready: ready})
}
