package rocketmq_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/conformance"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
	"github.com/halfbox/halfbox/outbox"
	sinkrocketmq "github.com/halfbox/halfbox/outbox/sink/rocketmq"
)

// The same contract on MySQL, by both ways to claim, and a RocketMQ cluster.
func TestConformanceOnRealEngines(t *testing.T) {
	t.Parallel()
	for _, claim := range []outbox.ClaimMode{outbox.ClaimSkipLocked, outbox.ClaimConditionalUpdate} {
		t.Run(string(claim), func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T, hooks database.Hooks) conformance.Strategy { return realStrategy(t, claim, hooks) })
		})
	}
}

func realStrategy(t *testing.T, claim outbox.ClaimMode, hooks database.Hooks) conformance.Strategy {
	dsn, nameServers := enginetest.MySQL(t), enginetest.RocketMQ(t)
	topic := enginetest.Topic(t, nameServers)
	db := openMySQL(t, dsn, database.Options{Hooks: hooks})
	require.NoError(t, db.Migrate(t.Context(), outbox.Migrations()))
	sink, err := sinkrocketmq.New(sinkrocketmq.Config{Name: "main", NameServers: nameServers, Group: enginetest.Group(t)})
	require.NoError(t, err)
	relay, err := outbox.NewRelay(outbox.RelayConfig{DB: openMySQL(t, dsn, database.Options{}), Sinks: []outbox.Sink{sink}, Claim: claim})
	require.NoError(t, err)
	require.NoError(t, relay.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, relay.Stop(ctx))
		require.NoError(t, sink.Close(ctx))
	})
	writer, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "main", Destination: topic, Nudge: relay.Nudge})
	require.NoError(t, err)
	return conformance.Strategy{
		Publisher: writer, DB: db, Delivered: rocketmqtest.Collect(t, nameServers, topic),
		Delivery: halfbox.DeliveryOutbox, Inserts: 2, Settle: 2 * time.Second,
	}
}

func openMySQL(t *testing.T, dsn string, o database.Options) *database.DB {
	t.Helper()
	db, err := database.OpenMySQL(dsn, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
