package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/remoting"
)

// Message is a message as the broker delivered it.
type Message struct {
	MsgID string // UNIQ_KEY
	Topic string // the original topic, also for a message that comes back from a retry topic
	Tag   string
	Body  []byte
	// StoredAt is when the broker stored it, by the broker's clock, in milliseconds.
	StoredAt time.Time
}

// ConsumerConfig makes a Consumer.
type ConsumerConfig struct {
	NameServers []string
	Credentials Credentials
	Group       string
	Topic       string
	// Tags filters by event type; empty takes every message.
	Tags []string
	// Handle is called concurrently. An error means a fault that passes (a database that is down): the same message
	// is handled again in place, 50 ms later at first, doubling up to 5 s, without spending the message's retry
	// budget at the broker.
	Handle func(ctx context.Context, m Message) error
	// Concurrency is the number of messages handled at once. Defaults to 16.
	Concurrency int
	Logger      *zap.Logger
}

// The waits of a consumer.
const (
	startRetryMin = 200 * time.Millisecond
	startRetryMax = 5 * time.Second
	handleMin     = 50 * time.Millisecond
	handleMax     = 5 * time.Second
	// inPlaceLimit is how long one message is tried in place. The client itself sends a message back after 15 min
	// and lets the handler go on, which would handle it twice at once.
	inPlaceLimit = 10 * time.Minute
	// stopGrace is what Stop takes beyond its context for what must not be cut short.
	stopGrace = 500 * time.Millisecond
	// quietBeforeShutdown is how long the handlers must have been idle before the client is shut down.
	quietBeforeShutdown = 50 * time.Millisecond
)

// Consumer receives messages until it is stopped. Start and Stop may be called from any goroutine.
type Consumer struct {
	cfg      ConsumerConfig
	ctx      context.Context
	cancel   context.CancelFunc
	inFlight atomic.Int64
	lastSeen atomic.Int64 // when a handler last ended, in ns of the monotonic clock
	begun    time.Time
	started  atomic.Bool
	loop     sync.WaitGroup
	once     sync.Once

	mu        sync.Mutex
	client    client.PushConsumer
	abandoned bool // Stop did not wait for the start loop, which ends its client itself
}

// NewConsumer returns a Consumer that has not started yet.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	if cfg.Group == "" || cfg.Topic == "" || cfg.Handle == nil {
		return nil, errors.New("rocketmq: ConsumerConfig needs Group, Topic and Handle")
	}
	if _, err := NameServers(cfg.NameServers); err != nil {
		return nil, err
	}
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 16
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Consumer{cfg: cfg, ctx: ctx, cancel: cancel, begun: time.Now()}, nil
}

// Start begins to consume in the background. A broker that is not there yet, or a topic without a route, is tried
// again until Stop; Ready tells whether it worked.
func (c *Consumer) Start() {
	c.once.Do(func() {
		c.loop.Go(c.startLoop)
	})
}

// Ready reports nil once the consumer is connected, else why it is not.
func (c *Consumer) Ready() error {
	if !c.started.Load() {
		return fmt.Errorf("consumer %s has not reached topic %s yet", c.cfg.Group, c.cfg.Topic)
	}
	return nil
}

func (c *Consumer) startLoop() {
	wait := startRetryMin
	for c.ctx.Err() == nil {
		err := c.startClient()
		if err == nil {
			c.started.Store(true)
			return
		}
		c.cfg.Logger.Warn("consumer cannot start yet", zap.String("group", c.cfg.Group), zap.Error(err), zap.Duration("again_in", wait))
		if !sleep(c.ctx, wait) {
			return
		}
		wait = min(2*wait, startRetryMax)
	}
}

// reachable tells whether a client would find its topic. A client whose Start fails leaves a dozen goroutines behind
// for ever, so none is made before.
func (c *Consumer) reachable() (err error) {
	creds := remoting.Credentials{AccessKey: c.cfg.Credentials.AccessKey, SecretKey: c.cfg.Credentials.SecretKey}
	for _, ns := range c.cfg.NameServers {
		var brokers []string
		brokers, err = remoting.Route(c.ctx, strings.TrimPrefix(ns, "http://"), c.cfg.Topic, creds)
		if len(brokers) > 0 {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("name server %s knows no topic %s", ns, c.cfg.Topic)
		}
	}
	return err
}

// startClient makes a new client object for every try: one whose Start failed cannot be used again, nor shut down.
func (c *Consumer) startClient() error {
	if err := c.reachable(); err != nil {
		return err
	}
	resolver, err := Resolver(c.cfg.NameServers)
	if err != nil {
		return err
	}
	push, err := client.NewPushConsumer(
		consumer.WithNsResolver(resolver),
		consumer.WithCredentials(c.cfg.Credentials.client()),
		consumer.WithGroupName(c.cfg.Group),
		consumer.WithInstance(InstanceName("consumer")),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeGoroutineNums(c.cfg.Concurrency),
		consumer.WithPullThresholdForTopic(4096),
		consumer.WithPullThresholdSizeForTopic(64),
	)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if len(c.cfg.Tags) > 0 {
		selector.Expression = strings.Join(c.cfg.Tags, " || ")
	}
	if err := push.Subscribe(c.cfg.Topic, selector, c.consume); err != nil {
		return err
	}
	if err := push.Start(); err != nil {
		return err
	}
	c.mu.Lock()
	abandoned := c.abandoned
	if !abandoned {
		c.client = push
	}
	c.mu.Unlock()
	if abandoned {
		return errors.Join(errors.New("stopped while it was connecting"), c.end(c.ctx, push))
	}
	return nil
}

func (c *Consumer) consume(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	c.inFlight.Add(1)
	defer func() {
		c.lastSeen.Store(int64(time.Since(c.begun)))
		c.inFlight.Add(-1)
	}()
	for _, m := range msgs { // one, unless the client's batch size is raised
		id := m.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex)
		if id == "" {
			id = m.MsgId
		}
		if err := c.handleInPlace(Message{MsgID: id, Topic: m.Topic, Tag: m.GetTags(), Body: m.Body, StoredAt: time.UnixMilli(m.StoreTimestamp)}); err != nil {
			c.cfg.Logger.Warn("message goes back to the broker", zap.String("msg_id", id), zap.String("group", c.cfg.Group), zap.Error(err))
			return consumer.ConsumeRetryLater, nil
		}
	}
	return consumer.ConsumeSuccess, nil
}

// handleInPlace calls the handler until it succeeds, the consumer stops, or the message took too long.
func (c *Consumer) handleInPlace(m Message) error {
	began := time.Now()
	for wait := handleMin; ; wait = min(2*wait, handleMax) {
		err := c.safely(m)
		if err == nil {
			return nil
		}
		if time.Since(began) > inPlaceLimit {
			return err
		}
		c.cfg.Logger.Warn("message cannot be handled now", zap.String("msg_id", m.MsgID), zap.String("group", c.cfg.Group), zap.Error(err), zap.Duration("again_in", wait))
		if !sleep(c.ctx, wait) {
			return err
		}
	}
}

// safely turns a panic of the handler into an error: the client would swallow it and keep the message for ever.
func (c *Consumer) safely(m Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("handler panicked: %v\n%s", v, debug.Stack())
		}
	}()
	return c.cfg.Handle(c.ctx, m)
}

// Stop ends the consumer: no new messages, the handlers in flight finish, offsets are sent, the client shuts down.
// When ctx ends first, the handlers' context is cancelled. Stop may be called before Start and more than once.
func (c *Consumer) Stop(ctx context.Context) error {
	c.once.Do(func() {}) // Start after Stop does nothing
	defer c.cancel()
	c.mu.Lock()
	push := c.client
	c.client = nil
	c.mu.Unlock()
	if push == nil {
		c.cancel()
		waited := c.waitLoop(ctx)
		c.mu.Lock()
		push, c.client = c.client, nil // the start loop may just have made it
		c.abandoned = push == nil
		c.mu.Unlock()
		switch {
		case push != nil:
		case waited:
			return nil
		default:
			return fmt.Errorf("consumer %s: still connecting, it ends once the client gives up", c.cfg.Group)
		}
	}
	return c.end(ctx, push)
}

// waitLoop waits for the start loop, whose client may be waiting for a broker that says nothing; false when ctx
// ended first.
func (c *Consumer) waitLoop(ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		c.loop.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// end suspends the client, waits for the handlers and shuts the client down.
func (c *Consumer) end(ctx context.Context, push client.PushConsumer) error {
	push.Suspend()
	drained := c.drain(ctx)
	if !drained {
		c.cancel()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		drained = c.drain(grace)
		cancel()
	}
	err := c.shutdown(ctx, push)
	if !drained {
		err = errors.Join(err, fmt.Errorf("consumer %s: handlers still running", c.cfg.Group))
	}
	return err
}

// drain waits until no handler has run for a little while: messages that the client pulled before Suspend still
// come, and a client that is shut down between two of them panics.
func (c *Consumer) drain(ctx context.Context) bool {
	for {
		idle := time.Since(c.begun) - time.Duration(c.lastSeen.Load())
		if c.inFlight.Load() == 0 && idle > quietBeforeShutdown {
			return true
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return false
		}
	}
}

// shutdown bounds the client's Shutdown, which takes no context and may wait for a broker that is gone.
func (c *Consumer) shutdown(ctx context.Context, push client.PushConsumer) error {
	done := make(chan error, 1)
	go func() {
		if p, ok := push.(interface{ PersistConsumerOffset() error }); ok {
			_ = p.PersistConsumerOffset() // lost offsets mean redelivery, which consumers must bear anyway
		}
		// Shutdown closes the channel of every queue the client still has, and a pull that is answered just then
		// would send on it and end the process. A rebalance without subscriptions gives all queues up before.
		if p, ok := push.(interface{ Rebalance() }); ok {
			_ = push.Unsubscribe(c.cfg.Topic)
			_ = push.Unsubscribe("%RETRY%" + c.cfg.Group)
			p.Rebalance()
		}
		done <- push.Shutdown()
	}()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*stopGrace)
	defer cancel()
	select {
	case err := <-done:
		return err
	case <-bound.Done():
		return errors.New("RocketMQ consumer: shutdown did not return in time")
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
