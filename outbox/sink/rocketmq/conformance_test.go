package rocketmq_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/conformance"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/outbox"
	sinkrocketmq "github.com/halfbox/halfbox/outbox/sink/rocketmq"
)

// The outbox, from its writer through the relay and this sink to the broker, keeps the contract of PublishInTx.
func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, hooks database.Hooks) conformance.Strategy {
		const topic = "CONFORMANCE"
		b := brokertest.Start(t)
		path := filepath.Join(t.TempDir(), "order.db")
		db := openDB(t, path, database.Options{Hooks: hooks})
		sink, err := sinkrocketmq.New(sinkrocketmq.Config{Name: "main", NameServers: []string{b.Addr()}, Group: "relay-" + uuid.NewString()})
		require.NoError(t, err)
		// The relay has a pool without hooks: the faults are those of the writer.
		relay, err := outbox.NewRelay(outbox.RelayConfig{DB: openDB(t, path, database.Options{}), Sinks: []outbox.Sink{sink}})
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
			Publisher: writer, DB: db, Delivery: halfbox.DeliveryOutbox, Inserts: 2, Settle: 300 * time.Millisecond,
			Delivered: func(msgID string) ([][]byte, error) {
				found, err := b.FindMessages(topic, msgID)
				var bodies [][]byte
				for _, m := range found {
					bodies = append(bodies, m.Body)
				}
				return bodies, err
			},
		}
	})
}

func openDB(t *testing.T, path string, o database.Options) *database.DB {
	t.Helper()
	db, err := database.OpenSQLite(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.Migrate(t.Context(), outbox.Migrations()))
	return db
}
