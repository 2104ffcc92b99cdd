package app

import (
	"context"
	"database/sql"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/configs"
)

// TestRelayCannotStarveTheAPI: the relay has a small pool of its own. With all of it in use, as by a backlog that is being
// drained, orders are made as ever (R41).
func TestRelayCannotStarveTheAPI(t *testing.T) {
	t.Parallel()
	c, err := configs.Load("", nil)
	require.NoError(t, err)
	c.Data = t.TempDir()
	c.HTTP.Listen, c.Admin.Listen, c.Broker.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.Txmsg.LocalTimeout = 5 * time.Second // the most that the broker's transaction_timeout allows
	a, err := New(Options{Config: c})
	require.NoError(t, err)
	const wait = time.Minute
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		require.NoError(t, a.Stop(ctx))
	})
	require.NoError(t, a.Start())
	ready, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, a.AwaitReady(ready))

	pool, err := a.relayDB.Read.DB()
	require.NoError(t, err)
	orders, err := a.orderDB.Read.DB()
	require.NoError(t, err)
	require.NotSame(t, orders, pool)
	require.NotSame(t, a.orderDB.SQL(), a.relayDB.SQL())
	require.Equal(t, relayConnections, pool.Stats().MaxOpenConnections)
	var held []*sql.Conn
	for range relayConnections {
		conn, err := pool.Conn(t.Context())
		require.NoError(t, err)
		held = append(held, conn)
	}
	require.Eventually(t, func() bool { return pool.Stats().WaitCount > 0 }, wait, 5*time.Millisecond, "the relay waits for a connection")
	for _, delivery := range []string{"outbox", "txmsg"} {
		res, err := http.Post("http://"+a.Addresses().HTTP+"/api/v1/orders", "application/json",
			strings.NewReader(`{"user_id":1,"amount_cents":100,"delivery":"`+delivery+`"}`))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusCreated, res.StatusCode)
	}
	for _, conn := range held {
		require.NoError(t, conn.Close())
	}
}
