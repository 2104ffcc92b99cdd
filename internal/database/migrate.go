package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
)

// Line is one package's migrations: each package owns its tables and moves them on its own.
type Line struct {
	// Name is the package's name; the versions are kept in the table goose_<Name>.
	Name string
	// Files holds migrations/sqlite and migrations/mysql with goose files.
	Files fs.FS
}

// Migration is one step of a line.
type Migration struct {
	Line    string
	Version int64
	File    string
	// AppliedAt is when it was applied; the zero time when it is pending.
	AppliedAt time.Time
}

// Migrate brings the line to its newest version. On MySQL it holds a lock (GET_LOCK) meanwhile, so that several
// processes may call it at once.
func (db *DB) Migrate(ctx context.Context, line Line) error {
	provider, err := db.provider(line)
	if err != nil {
		return err
	}
	// On SQLite several processes may start on the same files at once. The slower one fails on a table that is there
	// already, in a transaction that is undone; the next try sees what another has done. That may happen once for each
	// version.
	tries := 1
	if db.Dialect == SQLite {
		tries += len(provider.ListSources())
	}
	for range tries {
		if _, err = provider.Up(ctx); err == nil {
			return nil
		}
	}
	return fmt.Errorf("migrate %s: %w", line.Name, err)
}

// MigrateDown undoes the line's newest migration and returns it; nil when nothing was applied. It drops what the
// migration had made, with the rows in it.
func (db *DB) MigrateDown(ctx context.Context, line Line) (*Migration, error) {
	provider, err := db.provider(line)
	if err != nil {
		return nil, err
	}
	r, err := provider.Down(ctx)
	if errors.Is(err, goose.ErrNoNextVersion) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("migrate %s down: %w", line.Name, err)
	}
	return &Migration{Line: line.Name, Version: r.Source.Version, File: r.Source.Path}, nil
}

// MigrationStatus lists every migration of the line. It only reads.
func (db *DB) MigrationStatus(ctx context.Context, line Line) ([]Migration, error) {
	provider, err := db.provider(line)
	if err != nil {
		return nil, err
	}
	var applied []struct {
		VersionID int64
		Tstamp    time.Time
	}
	err = db.Read.WithContext(ctx).Raw("SELECT version_id, tstamp FROM goose_" + line.Name + " WHERE is_applied").Scan(&applied).Error
	if err != nil && !isNoTable(err) {
		return nil, fmt.Errorf("migrations of %s: %w", line.Name, err)
	}
	var all []Migration
	for _, source := range provider.ListSources() {
		m := Migration{Line: line.Name, Version: source.Version, File: source.Path}
		for _, a := range applied {
			if a.VersionID == m.Version {
				m.AppliedAt = a.Tstamp.UTC()
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// CheckMigrated reports nil when the line's migrations are all applied. It only reads.
func (db *DB) CheckMigrated(ctx context.Context, line Line) error {
	all, err := db.MigrationStatus(ctx, line)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			return fmt.Errorf("migration %s of %s is not applied: run halfbox migrate up", m.File, line.Name)
		}
	}
	return nil
}

func (db *DB) provider(line Line) (*goose.Provider, error) {
	files, err := fs.Sub(line.Files, "migrations/"+string(db.Dialect))
	if err != nil {
		return nil, fmt.Errorf("migrations of %s: %w", line.Name, err)
	}
	dialect := goose.DialectSQLite3
	options := []goose.ProviderOption{goose.WithTableName("goose_" + line.Name), goose.WithDisableGlobalRegistry(true)}
	if db.Dialect == MySQL {
		dialect = goose.DialectMySQL
		options = append(options, goose.WithSessionLocker(mysqlMigrationLock{}))
	}
	provider, err := goose.NewProvider(dialect, db.SQL(), files, options...)
	if err != nil {
		return nil, fmt.Errorf("migrations of %s: %w", line.Name, err)
	}
	return provider, nil
}
