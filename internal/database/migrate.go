package database

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/pressly/goose/v3"
)

// Line is one package's migrations: each package owns its tables and moves them on its own.
type Line struct {
	// Name is the package's name; the versions are kept in the table goose_<Name>.
	Name string
	// Files holds migrations/sqlite and migrations/mysql with goose files.
	Files fs.FS
}

// Migrate brings the line to its newest version.
func (db *DB) Migrate(ctx context.Context, line Line) error {
	files, err := fs.Sub(line.Files, "migrations/"+string(db.Dialect))
	if err != nil {
		return fmt.Errorf("migrate %s: %w", line.Name, err)
	}
	dialect := goose.DialectSQLite3
	if db.Dialect == MySQL {
		dialect = goose.DialectMySQL
	}
	provider, err := goose.NewProvider(dialect, db.SQL(), files, goose.WithTableName("goose_"+line.Name), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrate %s: %w", line.Name, err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate %s: %w", line.Name, err)
	}
	return nil
}
