package rocketmq

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/outbox"
)

func TestNobodyListensIsUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	s := newSink(t, addr)
	require.ErrorIs(t, send(t, s, patience, record(1)), outbox.ErrUnreachable)
	require.Error(t, s.Probe(t.Context()))
}

// TestSilentNameServer: it accepts connections and never answers. The client waits for it whatever the context says;
// the sink does not, and does not pile up sends either.
func TestSilentNameServer(t *testing.T) {
	t.Parallel()
	addr := blackHole(t)
	// The client waits 6 s for each.
	s := newSink(t, addr, func(c *Config) { c.NameServers = []string{addr, blackHole(t), blackHole(t)} })
	require.ErrorIs(t, send(t, s, 50*time.Millisecond, record(1)), outbox.ErrTimeout)
	require.EqualValues(t, 1, s.abandoned.Load(), "it waited for the client")
	s.abandoned.Add(maxAbandoned - 1)
	require.ErrorIs(t, send(t, s, 50*time.Millisecond, record(2)), outbox.ErrUnreachable)
	s.abandoned.Add(1 - maxAbandoned)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, s.Probe(ctx))
}

// blackHole accepts connections and says nothing until the test ends.
func blackHole(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

func TestProbe(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	s := newSink(t, b.Addr())
	require.Error(t, s.Probe(t.Context()), "nothing was sent yet")
	require.NoError(t, send(t, s, patience, record(1)))
	require.NoError(t, s.Probe(t.Context()))
}

// TestTopicWithoutARoute: where topics are not created by themselves, and where the name is not one of a topic.
func TestTopicWithoutARoute(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) { c.DisableTopicAutoCreate = true })
	require.NoError(t, remoting.EnsureTopic(t.Context(), b.Addr(), topic, 1, remoting.Credentials{}))
	s := newSink(t, b.Addr())
	for _, name := range []string{"NOBODY_MADE_IT", "not a topic!"} {
		bad := record(1)
		bad.Destination = name
		err := send(t, s, patience, bad)
		require.ErrorContains(t, err, name)
		for _, class := range []error{outbox.ErrRefused, outbox.ErrUnreachable, outbox.ErrTimeout} {
			require.NotErrorIs(t, err, class, "it spends a retry")
		}
		require.NoError(t, send(t, s, patience, record(2)))
	}
	late := record(3)
	late.Destination = "LATE"
	require.Error(t, send(t, s, patience, late))
	require.NoError(t, remoting.EnsureTopic(t.Context(), b.Addr(), "LATE", 1, remoting.Credentials{}))
	require.NoError(t, send(t, s, patience, late), "it may come to be")
}

// TestNoRouteWhileBrokersAreDown: the name server answers, but it knows no broker any more, or does not answer every
// question; or it knows the topic after all. None of that is the event's fault.
func TestNoRouteWhileBrokersAreDown(t *testing.T) {
	t.Parallel()
	noTopic := broker.Action{Code: codeTopicNotExist, Remark: "no route"}
	for name, cluster := range map[string]broker.Action{"no broker": {Code: 1, Remark: "no cluster"}, "no answer": {Drop: true}} {
		b := brokertest.Start(t, func(c *broker.Config) {
			c.Hooks.OnRequest = func(r broker.Request) broker.Action {
				switch r.Code {
				case remoting.CodeRoute:
					return noTopic
				case remoting.CodeClusterInfo:
					return cluster
				}
				return broker.Action{}
			}
		})
		s := newSink(t, b.Addr())
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		require.ErrorIs(t, s.noRoute(ctx, topic, errors.New("no route")), outbox.ErrUnreachable, name)
		cancel()
	}
	b := brokertest.Start(t)
	s := newSink(t, b.Addr())
	require.ErrorIs(t, s.noRoute(t.Context(), topic, errors.New("no route")), outbox.ErrUnreachable, "the topic is there by now")
	s = newSink(t, blackHole(t))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.noRoute(ctx, topic, errors.New("no route")), outbox.ErrUnreachable)
	s = newSink(t, b.Addr(), func(c *Config) { c.NameServers = []string{"127.0.0.1:1", b.Addr()} })
	require.NoError(t, send(t, s, patience, record(1)))
	require.NoError(t, s.Probe(t.Context()), "one name server that answers is enough")
}

// TestRelayOutlivesATopicWithoutARoute: its event dies after its retries, and the others are not held up.
func TestRelayOutlivesATopicWithoutARoute(t *testing.T) {
	t.Parallel()
	db, write := openOutbox(t)
	b := brokertest.Start(t, func(c *broker.Config) { c.DisableTopicAutoCreate = true })
	require.NoError(t, remoting.EnsureTopic(t.Context(), b.Addr(), topic, 1, remoting.Credentials{}))
	write("NOBODY_MADE_IT", 1)
	write(topic, 100)
	r, err := outbox.NewRelay(outbox.RelayConfig{
		DB: db, Sinks: []outbox.Sink{newSink(t, b.Addr())}, SendTimeout: patience, PollMax: 20 * time.Millisecond, BackoffBase: time.Millisecond,
	})
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
	require.Eventually(t, func() bool { done, dead := counts(t, db); return done == 100 && dead == 1 }, patience, tick)
	found, err := outbox.List(t.Context(), db, outbox.Filter{Status: outbox.StatusFail})
	require.NoError(t, err)
	require.Equal(t, outbox.ReasonRetries, found[0].Reason())
	require.Contains(t, found[0].LastError, "NOBODY_MADE_IT")
}

// openOutbox makes a database with an outbox, and what commits events to it.
func openOutbox(t *testing.T) (db *database.DB, write func(destination string, n int)) {
	t.Helper()
	db, err := database.OpenSQLite(filepath.Join(t.TempDir(), "test.db"), database.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	require.NoError(t, db.Migrate(t.Context(), outbox.Migrations()))
	w, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "main", Destination: topic})
	require.NoError(t, err)
	return db, func(destination string, n int) {
		for range n {
			_, err := w.PublishInTx(t.Context(), halfbox.Event{
				Type: "order.created", Source: "/test", Subject: uuid.NewString(), Time: time.Now(), DataSchema: "urn:x:1", AggregateVersion: 1,
				Destination: destination, Data: []byte(`{}`),
			}, func(*gorm.DB, halfbox.Attempt) error { return nil })
			require.NoError(t, err)
		}
	}
}

func counts(t *testing.T, db *database.DB) (done, dead int64) {
	st, err := outbox.Stats(t.Context(), db)
	require.NoError(t, err)
	for _, c := range st.Counts {
		switch c.Status {
		case outbox.StatusSuccess:
			done = c.N
		case outbox.StatusFail:
			dead = c.N
		}
	}
	return done, dead
}

// TestRelayThroughBrokerOutage: everything committed before, during and after an outage arrives, nothing dies.
func TestRelayThroughBrokerOutage(t *testing.T) {
	t.Parallel()
	db, write := openOutbox(t)
	b := brokertest.Start(t)
	s := newSink(t, b.Addr(), func(c *Config) { c.SendTimeout = 2 * time.Second })
	r, err := outbox.NewRelay(outbox.RelayConfig{
		DB: db, Sinks: []outbox.Sink{s}, SendTimeout: 3 * time.Second, PollMax: 20 * time.Millisecond, BackoffBase: time.Millisecond,
		Breaker: outbox.BreakerConfig{OpenMin: 20 * time.Millisecond, OpenMax: 100 * time.Millisecond},
	})
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
	arrived := func(n int64) func() bool { return func() bool { done, _ := counts(t, db); return done == n } }
	write(topic, 30)
	require.Eventually(t, arrived(30), patience, tick)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, b.Stop(ctx))
	write(topic, 50)
	// Far longer than the retry budget of 14 ms.
	timer := time.NewTimer(500 * time.Millisecond)
	<-timer.C
	_, dead := counts(t, db)
	require.Zero(t, dead)
	b = brokertest.Restart(t, b)
	write(topic, 20)
	require.Eventually(t, arrived(100), patience, tick)
	got := receive(t, b)
	require.Eventually(t, func() bool { return got.count() == 100 }, patience, tick)
	_, dead = counts(t, db)
	require.Zero(t, dead)
}
