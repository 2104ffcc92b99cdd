package app_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// MySQL commits each statement of a migration by itself. A process that dies in the middle leaves tables of which no
// version tells; the next one goes on from there.
func TestMigrationsGoOnAfterAKill(t *testing.T) {
	t.Parallel()
	for _, m := range app.MigratedDatabases() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			db, err := database.OpenMySQL(enginetest.MySQL(t), database.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			for _, line := range m.Lines {
				require.NoError(t, db.Migrate(t.Context(), line))
				require.NoError(t, db.Write.Exec("DELETE FROM goose_"+line.Name+" WHERE version_id > 0").Error)
				require.NoError(t, db.Migrate(t.Context(), line), "up")
				require.NoError(t, db.CheckMigrated(t.Context(), line))

				var tables []string
				require.NoError(t, db.Read.Raw("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 't\\_%'").Scan(&tables).Error)
				require.NotEmpty(t, tables)
				for _, name := range tables {
					require.NoError(t, db.Write.Exec("DROP TABLE "+name).Error)
				}
				for undone := &(database.Migration{}); undone != nil; {
					undone, err = db.MigrateDown(t.Context(), line)
					require.NoError(t, err, "down")
				}
			}
		})
	}
}

// Both lines of migrations in one schema would share tables.
func TestOneSchemaForBothIsRefused(t *testing.T) {
	t.Parallel()
	c := config(t, t.TempDir())
	c.Database.Driver, c.Database.OrderDSN, c.Database.PointsDSN = "mysql", "a:x@tcp(db:3306)/halfbox", "b:y@tcp(db:3306)/halfbox?parseTime=true"
	for _, open := range []func() error{
		func() error { _, err := app.New(app.Options{Config: c}); return err },
		func() error { _, err := app.OrderDatabase().Open(c); return err },
		func() error { _, err := app.PointsDatabase().Look(c); return err },
	} {
		err := open()
		var setup *app.SetupError
		require.ErrorAs(t, err, &setup)
		require.ErrorContains(t, err, "name the same schema: give each a schema of its own")
	}
}
