package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
	"github.com/halfbox/halfbox/outbox"
)

func TestMain(m *testing.M) { rocketmqtest.Main(m) }

const (
	topic     = "ORDER_EVENT_TOPIC"
	codeSend  = 10
	codeBatch = 320

	patience = time.Minute // for what must happen; generous, so that a slow machine decides no test
	tick     = 5 * time.Millisecond
)

func newSink(t *testing.T, addr string, change ...func(*Config)) *Sink {
	t.Helper()
	cfg := Config{Name: "main", NameServers: []string{addr}, Group: "sink-" + uuid.NewString(), SendTimeout: patience}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
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
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Stop(ctx); err != nil { // it is tested elsewhere
			t.Log(err)
		}
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
	require.NoError(t, send(t, s, patience, batch...))
	require.NoError(t, send(t, s, patience, record(99)))
	require.NoError(t, send(t, s, 5*time.Second))
	require.Eventually(t, func() bool { return got.count() == 21 }, patience, tick)
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
		err := send(t, s, patience, record(1), record(2))
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
	require.ErrorIs(t, send(t, s, patience, record(2), big), outbox.ErrRefused)
	require.NoError(t, send(t, s, patience, record(2)))
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
	require.NoError(t, send(t, s, patience, record(0)))
	lose.Store(true)
	began := time.Now()
	require.ErrorIs(t, send(t, s, 200*time.Millisecond, record(1), record(2)), outbox.ErrTimeout)
	require.Less(t, time.Since(began), patience/2)
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
