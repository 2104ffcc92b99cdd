package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
	"github.com/halfbox/halfbox/outbox"
)

func TestMain(m *testing.M) { rocketmqtest.Main(m) }

const (
	topic     = "ORDER_EVENT_TOPIC"
	codeSend  = 10
	codeBatch = 320
)

func newSink(t *testing.T, addr string, change ...func(*Config)) *Sink {
	t.Helper()
	cfg := Config{Name: "main", NameServers: []string{addr}, Group: "sink-" + uuid.NewString(), SendTimeout: 2 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, s.Close(ctx))
		require.NoError(t, s.Close(ctx))
	})
	return s
}

func record(i int) outbox.Record {
	return outbox.Record{
		MsgID: uuid.NewString(), EventType: "order.created", BizNo: fmt.Sprint("NO", i), Destination: topic,
		Payload: []byte(fmt.Sprint("body ", i)), Headers: map[string]string{"traceparent": "00-x", "TRAN_MSG": "true"},
	}
}

func send(t *testing.T, s *Sink, within time.Duration, batch ...outbox.Record) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return s.Send(ctx, batch)
}

// received collects what arrives at a topic, by message id.
type received struct {
	mu sync.Mutex
	n  map[string]int
	by map[string]rocketmq.Message
}

func receive(t *testing.T, b *broker.Broker) *received {
	t.Helper()
	r := &received{n: map[string]int{}, by: map[string]rocketmq.Message{}}
	c, err := rocketmq.NewConsumer(rocketmq.ConsumerConfig{
		NameServers: []string{b.Addr()}, Group: "group-" + uuid.NewString(), Topic: topic,
		Handle: func(_ context.Context, m rocketmq.Message) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.n[m.MsgID]++
			r.by[m.MsgID] = m
			return nil
		},
	})
	require.NoError(t, err)
	c.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, c.Stop(ctx))
	})
	return r
}

func (r *received) count() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.n) }

func (r *received) get(id string) (rocketmq.Message, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[id], r.n[id]
}

func TestBatchIsOneRequestAndEachMessageKeepsItsIdentity(t *testing.T) {
	t.Parallel()
	var batches, singles atomic.Int32
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnRequest = func(r broker.Request) broker.Action {
			switch {
			case r.Code == codeBatch:
				batches.Add(1)
			case r.Code == codeSend && r.Topic == topic:
				singles.Add(1)
			}
			return broker.Action{}
		}
	})
	s := newSink(t, b.Addr())
	got := receive(t, b)
	var batch []outbox.Record
	for i := range 20 {
		batch = append(batch, record(i))
	}
	require.NoError(t, send(t, s, 5*time.Second, batch...))
	require.NoError(t, send(t, s, 5*time.Second, record(99)))
	require.NoError(t, send(t, s, 5*time.Second))
	require.Eventually(t, func() bool { return got.count() == 21 }, 20*time.Second, 5*time.Millisecond)
	require.EqualValues(t, 1, batches.Load())
	require.EqualValues(t, 1, singles.Load())
	for i, r := range batch {
		m, n := got.get(r.MsgID)
		require.Equal(t, 1, n)
		require.Equal(t, "order.created", m.Tag)
		require.Equal(t, fmt.Sprint("body ", i), string(m.Body))
	}
}

func TestMessageProperties(t *testing.T) {
	t.Parallel()
	m, err := message(record(1))
	require.NoError(t, err)
	require.Equal(t, "NO1", m.GetKeys())
	require.Equal(t, "00-x", m.GetProperty("traceparent"))
	require.Empty(t, m.GetProperty("TRAN_MSG"), "a header must not turn it into a half message")
	for _, change := range []func(*outbox.Record){
		func(r *outbox.Record) { r.BizNo = "a\x01b" },
		func(r *outbox.Record) { r.EventType = "" },
		func(r *outbox.Record) { r.Headers = map[string]string{"x\x02": "y"} },
		func(r *outbox.Record) { r.Headers = map[string]string{"x": string(make([]byte, 40000))} },
	} {
		r := record(1)
		change(&r)
		_, err := message(r)
		require.Error(t, err)
	}
}

func TestBrokersAnswersAreClassified(t *testing.T) {
	t.Parallel()
	var code atomic.Int32
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnRequest = func(r broker.Request) broker.Action {
			if r.Code == codeBatch || r.Code == codeSend {
				return broker.Action{Code: int(code.Load()), Remark: "injected"}
			}
			return broker.Action{}
		}
	})
	s := newSink(t, b.Addr())
	for answer, want := range map[int]error{
		rocketmq.CodeMessageIllegal: outbox.ErrRefused, codeTopicNotExist: outbox.ErrRefused,
		codeSystemBusy: outbox.ErrUnreachable, codeFlowControl: outbox.ErrUnreachable, codeServiceNotAvailable: outbox.ErrUnreachable,
		codeNoPermission: outbox.ErrUnreachable, 10: outbox.ErrUnreachable, 11: outbox.ErrUnreachable, 12: outbox.ErrUnreachable, 1: nil,
	} {
		code.Store(int32(answer))
		err := send(t, s, 5*time.Second, record(1), record(2))
		require.Error(t, err)
		for _, class := range []error{outbox.ErrRefused, outbox.ErrUnreachable, outbox.ErrTimeout} {
			require.Equal(t, errors.Is(class, want), errors.Is(err, class), "code %d: %v", answer, err)
		}
	}
}

func TestTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) { c.MaxMessageSize = 2000 })
	s := newSink(t, b.Addr())
	big := record(1)
	big.Payload = make([]byte, 3000)
	for i := range big.Payload {
		big.Payload[i] = byte(i * i)
	}
	require.ErrorIs(t, send(t, s, 5*time.Second, record(2), big), outbox.ErrRefused)
	require.NoError(t, send(t, s, 5*time.Second, record(2)))
}

func TestVerdictOfTransportErrors(t *testing.T) {
	t.Parallel()
	for want, errs := range map[error][]error{
		outbox.ErrUnreachable: {
			&net.OpError{Op: "dial", Err: errors.New("connection refused")}, &net.OpError{Op: "write", Err: errors.New("broken pipe")}, io.EOF,
			fmt.Errorf("x: %w", net.ErrClosed),
		},
		outbox.ErrTimeout: {errors.New("request timeout"), context.DeadlineExceeded},
	} {
		for _, err := range errs {
			require.ErrorIs(t, verdict(nil, err), want, "%v", err)
		}
	}
	require.ErrorIs(t, verdict(nil, context.Canceled), context.Canceled)
	require.NoError(t, verdict(&primitive.SendResult{Status: primitive.SendOK}, nil))
}

func TestAnswerLostIsATimeoutWithinTheDeadline(t *testing.T) {
	t.Parallel()
	var lose atomic.Bool
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnResponse = func(r broker.Request, _ int) broker.Action {
			return broker.Action{Drop: lose.Load() && (r.Code == codeBatch || r.Code == codeSend)}
		}
	})
	s := newSink(t, b.Addr())
	require.NoError(t, send(t, s, 5*time.Second, record(0)))
	lose.Store(true)
	began := time.Now()
	require.ErrorIs(t, send(t, s, 200*time.Millisecond, record(1), record(2)), outbox.ErrTimeout)
	require.Less(t, time.Since(began), 2*time.Second)
}

func TestNobodyListensIsUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	s := newSink(t, addr)
	require.ErrorIs(t, send(t, s, 5*time.Second, record(1)), outbox.ErrUnreachable)
	require.Error(t, s.Probe(t.Context()))
}

// TestSilentNameServer: it accepts connections and never answers. The client waits for it whatever the context says;
// the sink does not, and does not pile up sends either.
func TestSilentNameServer(t *testing.T) {
	t.Parallel()
	addr := blackHole(t)
	s := newSink(t, addr)
	began := time.Now()
	require.ErrorIs(t, send(t, s, 50*time.Millisecond, record(1)), outbox.ErrTimeout)
	require.Less(t, time.Since(began), 2*time.Second)
	require.EqualValues(t, 1, s.abandoned.Load())
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
	require.NoError(t, send(t, s, 5*time.Second, record(1)))
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
		err := send(t, s, 5*time.Second, bad)
		require.ErrorContains(t, err, name)
		for _, class := range []error{outbox.ErrRefused, outbox.ErrUnreachable, outbox.ErrTimeout} {
			require.NotErrorIs(t, err, class, "it spends a retry")
		}
		require.NoError(t, send(t, s, 5*time.Second, record(2)))
	}
	late := record(3)
	late.Destination = "LATE"
	require.Error(t, send(t, s, 5*time.Second, late))
	require.NoError(t, remoting.EnsureTopic(t.Context(), b.Addr(), "LATE", 1, remoting.Credentials{}))
	require.NoError(t, send(t, s, 5*time.Second, late), "it may come to be")
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
	require.NoError(t, send(t, s, 5*time.Second, record(1)))
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
		DB: db, Sinks: []outbox.Sink{newSink(t, b.Addr())}, PollMax: 20 * time.Millisecond, BackoffBase: time.Millisecond,
	})
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
	require.Eventually(t, func() bool { done, dead := counts(t, db); return done == 100 && dead == 1 }, 20*time.Second, 5*time.Millisecond)
	found, err := outbox.List(t.Context(), db, outbox.Filter{Status: outbox.StatusFail})
	require.NoError(t, err)
	require.Equal(t, outbox.ReasonRetries, found[0].Reason())
	require.Contains(t, found[0].LastError, "NOBODY_MADE_IT")
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{Name: "main"},
		{Name: "main", Group: "g"},
		{Name: "main", Group: "g", NameServers: []string{"nonsense"}},
		{Name: "main", Group: "g", NameServers: []string{"127.0.0.1:1"}, MaxBatch: -1},
	} {
		_, err := New(cfg)
		require.Error(t, err)
	}
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
	s := newSink(t, b.Addr(), func(c *Config) { c.SendTimeout = 300 * time.Millisecond })
	r, err := outbox.NewRelay(outbox.RelayConfig{
		DB: db, Sinks: []outbox.Sink{s}, SendTimeout: 500 * time.Millisecond, PollMax: 20 * time.Millisecond, BackoffBase: time.Millisecond,
		Breaker: outbox.BreakerConfig{OpenMin: 20 * time.Millisecond, OpenMax: 100 * time.Millisecond},
	})
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
	arrived := func(n int64) func() bool { return func() bool { done, _ := counts(t, db); return done == n } }
	write(topic, 30)
	require.Eventually(t, arrived(30), 20*time.Second, 5*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
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
	require.Eventually(t, arrived(100), 30*time.Second, 5*time.Millisecond)
	got := receive(t, b)
	require.Eventually(t, func() bool { return got.count() == 100 }, 30*time.Second, 5*time.Millisecond)
	_, dead = counts(t, db)
	require.Zero(t, dead)
}
