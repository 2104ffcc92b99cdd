package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// soon is the deadline for what must happen.
const soon = 30 * time.Second

func openMySQL(t *testing.T, dsn string) *database.DB {
	db, err := database.OpenMySQL(dsn, database.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestMySQLSchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	one, two := openMySQL(t, MySQL(t)), openMySQL(t, MySQL(t))
	require.NoError(t, one.Write.Exec("CREATE TABLE t (id INT PRIMARY KEY)").Error)
	require.NoError(t, one.Write.Exec("INSERT INTO t VALUES (1)").Error)
	require.Error(t, two.Write.Exec("SELECT * FROM t").Error, "another schema")
}

func TestMySQLSchemaIsDropped(t *testing.T) {
	t.Parallel()
	watch := openMySQL(t, MySQL(t))
	var name string
	t.Run("user", func(t *testing.T) {
		db := openMySQL(t, MySQL(t))
		require.NoError(t, db.Read.Raw("SELECT DATABASE()").Scan(&name).Error)
	})
	var left int
	require.NoError(t, watch.Read.Raw("SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?", name).Scan(&left).Error)
	require.NotEmpty(t, name)
	require.Zero(t, left)
}

// A COMMIT whose answer is lost on the wire.
func TestMySQLBehindProxy(t *testing.T) {
	t.Parallel()
	dsn := MySQL(t)
	p, through := MySQLProxy(t, dsn)
	direct, db := openMySQL(t, dsn), openMySQL(t, through)
	require.NoError(t, db.Write.Exec("CREATE TABLE t (id INT PRIMARY KEY)").Error)
	require.Positive(t, p.Bytes(ToClient))

	tx := db.Write.Begin()
	require.NoError(t, tx.Exec("INSERT INTO t VALUES (1)").Error)
	p.CutAfter(0, ToClient) // hits at once
	require.Error(t, tx.Commit().Error)
	p.Pass()

	tx = db.Write.Begin()
	require.NoError(t, tx.Exec("INSERT INTO t VALUES (2)").Error)
	p.Set(Fault{Kind: Drop}, ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	committed := make(chan error, 1)
	go func() { committed <- tx.Commit().Error }()
	require.NoError(t, untilNil(ctx, time.Millisecond, func() error {
		var id int
		return direct.Read.Raw("SELECT id FROM t WHERE id = 2").Row().Scan(&id)
	}), "the server has committed")
	p.Cut() // its answer may be on the way yet
	require.Error(t, <-committed, "and the client does not know")
}

func TestOwnMySQL(t *testing.T) {
	t.Parallel()
	own := OwnMySQL(t)
	dsn := own.NewSchema()
	require.True(t, own.Running())
	db := openMySQL(t, dsn)
	require.NoError(t, db.Write.Exec("CREATE TABLE t (id INT PRIMARY KEY)").Error)
	require.NoError(t, db.Write.Exec("INSERT INTO t VALUES (1)").Error)

	own.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Error(t, db.Write.WithContext(ctx).Exec("INSERT INTO t VALUES (2)").Error)
	own.Resume()

	own.Kill()
	require.False(t, own.Running())
	require.Error(t, db.Write.Exec("SELECT 1").Error)
	own.Start()
	require.Eventually(t, func() bool { return db.Write.Exec("INSERT INTO t VALUES (3)").Error == nil }, soon, 50*time.Millisecond, "same port")

	own.Stop()
	require.False(t, own.Running())
	own.Start()
	var n int
	require.NoError(t, openMySQL(t, dsn).Read.Raw("SELECT COUNT(*) FROM t WHERE id IN (1, 3)").Scan(&n).Error)
	require.Equal(t, 2, n, "the data is still there")
}
