package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/outbox"
)

// maxAbandoned bounds the sends that were given up but that the client has not ended yet: it may look for a route
// for 6 s per name server, whatever its context says.
const maxAbandoned = 4

// Config makes a Sink.
type Config struct {
	// Name is the sink's configured name, which records carry.
	Name string
	// NameServers are the addresses of the name servers, host:port.
	NameServers []string
	// AccessKey and SecretKey are the cluster's ACL credentials; empty when it asks for none.
	AccessKey, SecretKey string
	// Group is the producer group. It must not be that of transaction producers.
	Group string
	// SendTimeout bounds one request to the broker. Defaults to 3 s; keep it below the relay's.
	SendTimeout time.Duration
	// MaxBatch is the largest number of messages of one request. Defaults to no limit.
	MaxBatch int
	// MaxBatchBytes is the largest sum of bodies of one request. Defaults to 3 MiB: the broker takes 4 MiB by
	// default, properties included.
	MaxBatchBytes int
}

func (c Config) withDefaults() Config {
	if c.SendTimeout == 0 {
		c.SendTimeout = 3 * time.Second
	}
	if c.MaxBatchBytes == 0 {
		c.MaxBatchBytes = 3 << 20
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Name == "":
		return errors.New("rocketmq sink: Config.Name is missing")
	case c.Group == "":
		return errors.New("rocketmq sink: Config.Group is missing")
	case c.SendTimeout < 0 || c.MaxBatch < 0 || c.MaxBatchBytes < 0:
		return errors.New("rocketmq sink: Config.SendTimeout, MaxBatch and MaxBatchBytes must not be negative")
	}
	return nil
}

// Sink sends records to RocketMQ topics; a record's Destination is its topic. It is safe for concurrent use.
type Sink struct {
	cfg       Config
	producer  client.Producer
	lastTopic atomic.Value // string; what Probe asks for

	underWay  sync.WaitGroup
	abandoned atomic.Int32
	closeOnce sync.Once
	closed    chan struct{} // closed when the producer is shut down
}

var (
	_ outbox.Sink         = (*Sink)(nil)
	_ outbox.BatchLimiter = (*Sink)(nil)
	_ outbox.Prober       = (*Sink)(nil)
)

// New returns a Sink. It talks to no server yet, so the cluster need not be there.
func New(cfg Config) (*Sink, error) { return open(cfg, nil) }

func open(cfg Config, selector producer.QueueSelector) (*Sink, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := rocketmq.NewProducer(rocketmq.ProducerConfig{
		NameServers: cfg.NameServers, Credentials: rocketmq.Credentials{AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey},
		Group: cfg.Group, SendTimeout: cfg.SendTimeout, Selector: selector,
	})
	if err != nil {
		return nil, fmt.Errorf("rocketmq sink: %w", err)
	}
	return &Sink{cfg: cfg, producer: p, closed: make(chan struct{})}, nil
}

// Name is the sink's configured name.
func (s *Sink) Name() string { return s.cfg.Name }

// BatchLimit is the largest batch of one request.
func (s *Sink) BatchLimit() (records, bytes int) { return s.cfg.MaxBatch, s.cfg.MaxBatchBytes }

// Send sends batch as one request. It returns when the broker has answered or ctx has ended, whichever comes first.
func (s *Sink) Send(ctx context.Context, batch []outbox.Record) error { return s.send(ctx, batch, nil) }

// send sends batch to a queue, or to any if it is nil.
func (s *Sink) send(ctx context.Context, batch []outbox.Record, to *primitive.MessageQueue) error {
	msgs := make([]*primitive.Message, len(batch))
	for i, r := range batch {
		m, err := message(r)
		if err != nil {
			return outbox.Refused(err)
		}
		m.Queue = to
		msgs[i] = m
	}
	if len(msgs) == 0 {
		return nil
	}
	s.lastTopic.Store(msgs[0].Topic)
	if s.abandoned.Load() >= maxAbandoned {
		return outbox.Unreachable(errors.New("earlier sends have not come back from the client yet"))
	}
	return s.sendBounded(ctx, msgs)
}

// sendBounded keeps the caller's deadline, which the client does not.
func (s *Sink) sendBounded(ctx context.Context, msgs []*primitive.Message) error {
	done := make(chan error, 1)
	s.underWay.Add(1)
	go func() {
		defer s.underWay.Done()
		res, err := s.producer.SendSync(ctx, msgs...)
		if isNoRoute(err) {
			done <- s.noRoute(ctx, msgs[0].Topic, err)
			return
		}
		done <- verdict(res, err)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // both at once: the answer is worth more
		return err
	default:
	}
	s.abandoned.Add(1)
	go func() {
		late := <-done
		_ = late // the send was given up, whatever became of it
		s.abandoned.Add(-1)
	}()
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return outbox.Timeout(context.Cause(ctx))
}

// Close shuts the producer down once no send is under way. No Send may follow. Close may be called more than once.
// The error says that ctx ended first; the shutdown then goes on in the background.
func (s *Sink) Close(ctx context.Context) error {
	s.closeOnce.Do(func() {
		go func() {
			defer close(s.closed)
			s.underWay.Wait()
			_ = s.producer.Shutdown() // it always returns nil
		}()
	})
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rocketmq sink %s: still closing: %w", s.cfg.Name, context.Cause(ctx))
	}
}
