package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/points"
)

// MigratedDatabase is one of the service's databases and the lines of migrations in it.
type MigratedDatabase struct {
	Name  string
	Lines []database.Line
}

// OrderDatabase is the database of orders and of the outbox.
func OrderDatabase() MigratedDatabase {
	return MigratedDatabase{Name: "order", Lines: []database.Line{order.Migrations(), outbox.Migrations(), checkback.Migrations(), txlog.Migrations()}}
}

// PointsDatabase is the database of the points ledger.
func PointsDatabase() MigratedDatabase {
	return MigratedDatabase{Name: "points", Lines: []database.Line{points.Migrations()}}
}

// MigratedDatabases lists the databases of the service.
func MigratedDatabases() []MigratedDatabase {
	return []MigratedDatabase{OrderDatabase(), PointsDatabase()}
}

// MigrationLines names every line.
func MigrationLines() (names []string) {
	for _, m := range MigratedDatabases() {
		for _, line := range m.Lines {
			names = append(names, line.Name)
		}
	}
	return names
}

// Open opens the database for migrations, whose statements may take long.
func (m MigratedDatabase) Open(cfg configs.Config) (*database.DB, error) {
	if err := makeData(cfg); err != nil {
		return nil, err
	}
	return openDatabase(cfg, m.Name, database.Options{MaxOpen: 2, LongStatements: true})
}

// Look opens the database for a command that changes nothing; it never makes a file.
func (m MigratedDatabase) Look(cfg configs.Config) (*database.DB, error) {
	return m.existing(cfg, database.Options{MaxOpen: 2})
}

// OpenExisting opens the database for migrations like Open, and never makes a file.
func (m MigratedDatabase) OpenExisting(cfg configs.Config) (*database.DB, error) {
	return m.existing(cfg, database.Options{MaxOpen: 2, LongStatements: true})
}

func (m MigratedDatabase) existing(cfg configs.Config, o database.Options) (*database.DB, error) {
	if cfg.Database.Driver == "sqlite" {
		if _, err := os.Stat(databaseFile(cfg, m.Name)); err != nil {
			return nil, &SetupError{fmt.Errorf("there is no %s database: %w", m.Name, err), "run halfbox serve first, or name its folder with --data"}
		}
	}
	return openDatabase(cfg, m.Name, o)
}

// migrateTimeout bounds the migrations at start; another process may hold their lock for a while.
const migrateTimeout = 10 * time.Minute

// migrateAtStart brings a database's tables up to date if the configuration says so: now on SQLite, whose file is
// there, and in the background on MySQL, which may not be reachable yet. Either way readiness waits for the tables.
func (a *App) migrateAtStart(db *database.DB, m MigratedDatabase) error {
	var was atomic.Bool
	a.readyCheck(m.Name+" database", func(ctx context.Context) error {
		err := m.ready(ctx, db)
		if err == nil {
			was.Store(true)
		} else if was.Load() && a.worksWithout(m) {
			return httpapi.Degraded(err)
		}
		return err
	})
	switch {
	case a.cfg.Database.Migrate == "never", a.cfg.Database.Migrate == "auto" && db.Dialect != database.SQLite:
		return nil
	case db.Dialect == database.SQLite:
		if err := m.migrate(context.Background(), a.cfg); err != nil {
			return &SetupError{err, "check the file; the tables are as they were before"}
		}
		return nil
	}
	a.background("migrations of the "+m.Name+" database", func(ctx context.Context) error { return m.migrate(ctx, a.cfg) })
	return nil
}

func (m MigratedDatabase) ready(ctx context.Context, db *database.DB) error {
	if err := db.Ping(ctx); err != nil {
		return err
	}
	for _, line := range m.Lines {
		if err := db.CheckMigrated(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// worksWithout: a process that takes orders needs the points database to show points alone. When it is away points come
// late; taking every API process out of the load balancer would not help that.
func (a *App) worksWithout(m MigratedDatabase) bool {
	return m.Name == PointsDatabase().Name && a.has(RoleAPI)
}

func (m MigratedDatabase) migrate(ctx context.Context, cfg configs.Config) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	db, err := m.Open(cfg)
	if err != nil {
		return err
	}
	for _, line := range m.Lines {
		if err = db.Migrate(ctx, line); err != nil {
			break
		}
	}
	return errors.Join(err, db.Close())
}

// The pauses of a task in the background. They stay short: what waits for an engine is ready soon after it.
const (
	backgroundRetryMin = 250 * time.Millisecond
	backgroundRetryMax = 2 * time.Second
)

// background runs a task that an engine which is not there yet makes fail, until it succeeds or the application
// stops.
func (a *App) background(name string, task func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	started := false
	a.onStop(name, func(context.Context) error {
		cancel()
		if started {
			<-done
		}
		return nil
	})
	a.onStart(name, func() error {
		started = true
		go func() {
			defer close(done)
			for wait := backgroundRetryMin; ; wait = min(2*wait, backgroundRetryMax) {
				err := task(ctx)
				if err == nil || ctx.Err() != nil {
					return
				}
				a.log.Warn(name+" cannot be done yet", zap.Error(err), zap.Duration("again_in", wait))
				again := time.NewTimer(wait)
				select {
				case <-again.C:
				case <-ctx.Done():
					again.Stop()
					return
				}
			}
		}()
		return nil
	})
}
