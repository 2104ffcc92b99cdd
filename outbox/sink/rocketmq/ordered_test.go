package rocketmq

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/outbox"
)

func TestQueueOfAKey(t *testing.T) {
	t.Parallel()
	queues := func(n int) (out []remoting.Queue) {
		for i := range n {
			out = append(out, remoting.Queue{Broker: "b" + fmt.Sprint(i%2), ID: i / 2})
		}
		return out
	}
	// Written down, because a change of the hash moves every key.
	require.Equal(t, []remoting.Queue{{Broker: "b0", ID: 2}, {Broker: "b1", ID: 2}, {Broker: "b1", ID: 0}},
		[]remoting.Queue{queueOf("NO1", queues(8)), queueOf("NO2", queues(8)), queueOf("NO3", queues(8))})

	const keys = 8000
	load := map[remoting.Queue]int{}
	moved := 0
	backwards := queues(8)
	slices.Reverse(backwards)
	for i := range keys {
		key := fmt.Sprint("order-", i)
		q := queueOf(key, queues(8))
		load[q]++
		require.Equal(t, q, queueOf(key, backwards), "the order of the list does not matter")
		if more := queueOf(key, queues(9)); more != q {
			require.Equal(t, remoting.Queue{Broker: "b0", ID: 4}, more, "only to the new queue")
			moved++
		}
	}
	for q, n := range load {
		require.InDelta(t, keys/8, n, keys/8*0.2, q)
	}
	require.InDelta(t, keys/9, moved, keys/9*0.2)
}

func newOrdered(t *testing.T, nameServers []string) *Ordered {
	t.Helper()
	s, err := NewOrdered(Config{Name: "main", NameServers: nameServers, Group: "ordered-" + uuid.NewString(), SendTimeout: patience})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, s.Close(ctx))
	})
	return s
}

// arrivals waits for n messages, and returns all in the order in which their queues have them, repetitions left out.
func arrivals(t *testing.T, nameServers []string, topic string, n int) (got []enginetest.Stored) {
	t.Helper()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		all, err := enginetest.ReadTopic(ctx, nameServers[0], topic)
		seen := map[string]bool{}
		got = slices.DeleteFunc(all, func(m enginetest.Stored) bool {
			id := m.Properties[remoting.PropertyUniqueKey]
			repeated := seen[id]
			seen[id] = true
			return repeated
		})
		return err == nil && len(got) >= n
	}, patience, 10*tick)
	return got
}

// TestEventsOfAnOrderArriveInOrder: created and cancelled of many orders, written in one go and relayed by two relays;
// each order's events lie in one queue, in order, and the batches are large all the same.
func TestEventsOfAnOrderArriveInOrder(t *testing.T) {
	t.Parallel()
	t.Run("in process", func(t *testing.T) {
		t.Parallel()
		var sends atomic.Int32
		b := brokertest.Start(t, func(c *broker.Config) {
			c.Hooks.OnRequest = func(r broker.Request) broker.Action {
				if r.Code == codeBatch || r.Code == codeSend && r.Topic == topic {
					sends.Add(1)
				}
				return broker.Action{}
			}
		})
		path := filepath.Join(t.TempDir(), "order.db")
		arriveInOrder(t, []string{b.Addr()}, topic, func() *database.DB {
			db, err := database.OpenSQLite(path, database.Options{})
			require.NoError(t, err)
			return db
		})
		require.Less(t, int(sends.Load()), 100, "200 events, 4 queues")
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		dsn, nameServers := enginetest.MySQL(t), enginetest.RocketMQ(t)
		arriveInOrder(t, nameServers, enginetest.Topic(t, nameServers), func() *database.DB {
			db, err := database.OpenMySQL(dsn, database.Options{})
			require.NoError(t, err)
			return db
		})
	})
}

func arriveInOrder(t *testing.T, nameServers []string, topic string, open func() *database.DB) {
	const orders = 100
	db := open()
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.Migrate(t.Context(), outbox.Migrations()))
	w, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "main", Destination: topic, Ordered: true})
	require.NoError(t, err)
	for version, typ := range []string{"order.created", "order.cancelled"} {
		for i := range orders {
			ev := halfbox.Event{
				Type: typ, Source: "/test", Subject: fmt.Sprint("NO", i), Time: time.Now(), DataSchema: "urn:halfbox:schema:order:1",
				AggregateVersion: int64(version) + 1, Data: []byte(`{}`),
			}
			_, err := w.PublishInTx(t.Context(), ev, func(*gorm.DB, halfbox.Attempt) error { return nil })
			require.NoError(t, err)
		}
	}
	for range 2 {
		relayDB := open()
		t.Cleanup(func() { require.NoError(t, relayDB.Close()) })
		relay, err := outbox.NewRelay(outbox.RelayConfig{
			DB: relayDB, Sinks: []outbox.Sink{newOrdered(t, nameServers)}, Batch: 50, SendTimeout: patience,
			Ordered: map[string]outbox.HeadOfLine{"main": outbox.HeadOfLineBlock},
		})
		require.NoError(t, err)
		require.NoError(t, relay.Start())
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			require.NoError(t, relay.Stop(ctx))
		})
	}
	queueOf, seen := map[string]string{}, map[string][]string{}
	for _, m := range arrivals(t, nameServers, topic, 2*orders) {
		key := m.Properties[remoting.PropertyKeys]
		if had := queueOf[key]; had != "" {
			require.Equal(t, had, queueName(m.Queue))
		}
		queueOf[key] = queueName(m.Queue)
		seen[key] = append(seen[key], m.Properties[remoting.PropertyTags])
	}
	require.Len(t, seen, orders)
	used := map[string]bool{}
	for key, types := range seen {
		require.Equal(t, []string{"order.created", "order.cancelled"}, types, key)
		used[queueOf[key]] = true
	}
	require.Greater(t, len(used), 1, "several queues are used")
}

// TestOrderedSinkWithoutAServer: the class is told as by the sink without order.
func TestOrderedSinkWithoutAServer(t *testing.T) {
	t.Parallel()
	s := newOrdered(t, []string{"127.0.0.1:1"})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := s.Partitions(ctx, []outbox.Record{record(1)})
	require.ErrorIs(t, err, outbox.ErrUnreachable)
	require.ErrorIs(t, s.Send(ctx, []outbox.Record{record(1)}), outbox.ErrUnreachable)
}

func TestOrderedSinkRefusesABatchOfSeveralQueues(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	s := newOrdered(t, []string{b.Addr()})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var batch []outbox.Record
	for i := range 20 {
		r := record(i)
		r.PartitionKey = r.BizNo
		batch = append(batch, r)
	}
	require.ErrorContains(t, s.Send(ctx, batch), "a batch for the queues")
	require.NoError(t, s.Send(ctx, batch[:1]))
	require.NoError(t, s.Send(ctx, nil))
}
