package database_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// greeting is the first packet of a server: version 10 of the protocol with the abilities of a MySQL, and no plugin.
const greeting = "\x33\x00\x00\x00" + "\x0a" + "9.7.4\x00" + "\x01\x00\x00\x00" + "saltsalt\x00" + "\x01\x82" +
	"\xff\x02\x00" + "\x00\x00" + "\x15" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "saltsaltsalt\x00"

// greeted is a connection that the server has greeted and then reset.
type greeted struct {
	net.Conn
	greeting *strings.Reader
}

func (c greeted) Read(b []byte) (int, error) { return c.greeting.Read(b) }

func (greeted) Write([]byte) (int, error) { return 0, syscall.ECONNRESET }

// TestConnectionBreaksBeforeTheLogin: it is tried again, and whoever is told knows that the database is away.
func TestConnectionBreaksBeforeTheLogin(t *testing.T) {
	t.Parallel()
	var dials atomic.Int32
	mysql.RegisterDialContext("greeted", func(context.Context, string) (net.Conn, error) {
		dials.Add(1)
		client, _ := net.Pipe()
		return greeted{client, strings.NewReader(greeting)}, nil
	})
	t.Cleanup(func() { mysql.DeregisterDialContext("greeted") })
	db, err := database.OpenMySQL("root@greeted(server)/shop", database.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	err = db.Ping(t.Context())
	require.Error(t, err)
	require.True(t, database.IsTransient(err), "%v", err)
	require.Greater(t, dials.Load(), int32(1))
}
