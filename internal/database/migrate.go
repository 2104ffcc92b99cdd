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
	provider, err := db.provider(line)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", line.Name, err)
	}
	// Two processes may start on the same SQLite files at once. The slower one fails on a table that is there
	// already, in a transaction that is undone; the next try sees what the other has done.
	tries := 1
	if db.Dialect == SQLite {
		tries = 3
	}
	for range tries {
		if _, err = provider.Up(ctx); err == nil {
			return nil
		}
	}
	return fmt.Errorf("migrate %s: %w", line.Name, err)
}

func (db *DB) provider(line Line) (*goose.Provider, error) {
	files, err := fs.Sub(line.Files, "migrations/"+string(db.Dialect))
	if err != nil {
		return nil, err
	}
	dialect := goose.DialectSQLite3
	if db.Dialect == MySQL {
		dialect = goose.DialectMySQL
	}
	return goose.NewProvider(dialect, db.SQL(), files, goose.WithTableName("goose_"+line.Name), goose.WithDisableGlobalRegistry(true))
}
