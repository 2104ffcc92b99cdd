package txmsg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/conformance"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
	"github.com/halfbox/halfbox/txmsg"
)

// The same contract on MySQL and a RocketMQ cluster, whose broker asks after 2 s and every 2 s.
func TestConformanceOnRealEngines(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, hooks database.Hooks) conformance.Strategy {
		return realStrategy(t, hooks, newFactResolver)
	})
}

func realStrategy(t *testing.T, hooks database.Hooks, resolver func(testing.TB, *database.DB) checkback.Resolver) conformance.Strategy {
	dsn, nameServers := enginetest.MySQL(t), enginetest.RocketMQ(t)
	topic := enginetest.Topic(t, nameServers)
	checks := openMySQL(t, dsn, database.Options{LockWait: time.Second, MaxOpen: 2})
	checker, err := checkback.New(checkback.Config{
		Resolvers: map[string]checkback.Resolver{"conformance.fact": resolver(t, checks)}, Grace: 2500 * time.Millisecond,
	})
	require.NoError(t, err)
	cfg := txmsg.Config{
		DB: openMySQL(t, dsn, database.Options{Hooks: hooks}), NameServers: nameServers, Group: enginetest.Group(t), Topic: topic,
		Checker: &recorder{inner: checker}, HalfTimeout: wait, LocalTimeout: wait,
	}
	return conformance.Strategy{
		Publisher: startProducer(t, cfg), DB: cfg.DB, Delivered: rocketmqtest.Collect(t, nameServers, topic),
		Delivery: halfbox.DeliveryTxmsg, Inserts: 1,
		Settle: 7 * time.Second, // a young half is asked for twice
	}
}

func openMySQL(t testing.TB, dsn string, o database.Options) *database.DB {
	t.Helper()
	db, err := database.OpenMySQL(dsn, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
