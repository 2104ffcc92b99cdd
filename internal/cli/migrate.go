package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/database"
)

func newMigrate(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make and change the tables",
		Long: `Make and change the tables of the order and the points database. On SQLite "serve" does it by itself; on MySQL it
is a step of its own, unless database.migrate says "always". Several processes may migrate at once: on MySQL a named
lock (GET_LOCK) lets one work and the others wait.`,
		Example: `  halfbox migrate status --config real.yaml
  halfbox migrate up --config real.yaml
  halfbox migrate down --config real.yaml --line outbox --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMigrateUp(o), newMigrateStatus(o), newMigrateDown(o))
	return cmd
}

// forEachLine opens the databases one after the other and calls do for every line of migrations in them.
func forEachLine(o *options, open opener, do func(db *database.DB, line database.Line) error) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	for _, m := range app.MigratedDatabases() {
		if err := withDatabase(cfg, m, open, do); err != nil {
			return err
		}
	}
	return nil
}

// opener opens a database: MigratedDatabase.Open to change it, Look to read it.
type opener func(app.MigratedDatabase, configs.Config) (*database.DB, error)

func withDatabase(cfg configs.Config, m app.MigratedDatabase, open opener, do func(*database.DB, database.Line) error) error {
	db, err := open(m, cfg)
	if err != nil {
		return err
	}
	for _, line := range m.Lines {
		if err = do(db, line); err != nil {
			err = &runError{fmt.Errorf("%s database: %w", m.Name, err)}
			break
		}
	}
	return errors.Join(err, db.Close())
}

func newMigrateUp(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Bring every table to its newest version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return forEachLine(o, app.MigratedDatabase.Open, func(db *database.DB, line database.Line) error {
				if err := db.Migrate(cmd.Context(), line); err != nil {
					return err
				}
				all, err := db.MigrationStatus(cmd.Context(), line)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: at version %d\n", line.Name, all[len(all)-1].Version)
				return err
			})
		},
	}
}

func newMigrateStatus(o *options) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which migrations are applied; exit 1 when one is pending",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			all, err := migrationStatus(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := out.print(cmd.OutOrStdout(), all, func() [][]string { return migrationTable(all) }); err != nil {
				return err
			}
			for _, m := range all {
				if m.AppliedAt == nil {
					return &runError{errors.New("migrations are pending: run halfbox migrate up")}
				}
			}
			return nil
		},
	}
	out.flag(cmd)
	return cmd
}

// migrationView is a migration as it is shown.
type migrationView struct {
	Line      string     `json:"line"`
	Version   int64      `json:"version"`
	File      string     `json:"file"`
	AppliedAt *time.Time `json:"applied_at"` // null when it is pending
}

func migrationStatus(ctx context.Context, o *options) ([]migrationView, error) {
	var all []migrationView
	err := forEachLine(o, app.MigratedDatabase.Look, func(db *database.DB, line database.Line) error {
		status, err := db.MigrationStatus(ctx, line)
		for _, m := range status {
			v := migrationView{Line: m.Line, Version: m.Version, File: m.File}
			if !m.AppliedAt.IsZero() {
				v.AppliedAt = &m.AppliedAt
			}
			all = append(all, v)
		}
		return err
	})
	return all, err
}

func migrationTable(all []migrationView) [][]string {
	rows := [][]string{{"LINE", "VERSION", "FILE", "APPLIED (UTC)"}}
	for _, m := range all {
		at := "pending"
		if m.AppliedAt != nil {
			at = m.AppliedAt.Format(time.DateTime)
		}
		rows = append(rows, []string{m.Line, strconv.FormatInt(m.Version, 10), m.File, at})
	}
	return rows
}

func newMigrateDown(o *options) *cobra.Command {
	var name string
	var yes bool
	cmd := &cobra.Command{
		Use:   "down --line LINE --yes",
		Short: "Undo the newest migration of a line; it drops what that migration made",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			lines := app.MigrationLines()
			if !slices.Contains(lines, name) {
				return fmt.Errorf("--line %q: write one of %v", name, lines)
			}
			if !yes {
				return fmt.Errorf("migrate down drops tables of %s with all their rows: add --yes to do it", name)
			}
			return forEachLine(o, app.MigratedDatabase.OpenExisting, func(db *database.DB, line database.Line) error {
				if line.Name != name {
					return nil
				}
				undone, err := db.MigrateDown(cmd.Context(), line)
				if err != nil {
					return err
				}
				if undone == nil {
					return fmt.Errorf("no migration of %s is applied", name)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: undone %d (%s)\n", name, undone.Version, undone.File)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&name, "line", "", fmt.Sprintf("the line: %v", app.MigrationLines()))
	cmd.Flags().BoolVar(&yes, "yes", false, "really drop the tables")
	return cmd
}
