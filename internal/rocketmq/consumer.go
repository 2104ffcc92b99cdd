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
	// inPlaceLimit is how long one message is tried in place. Then it goes back to the broker, which delivers it again
	// later and later, 16 times. The client by itself sends a message back after consumeTimeout and lets the handler go
	// on, which would handle it twice at once; a client that has ended leaves a goroutine behind for that long.
	inPlaceLimit   = 6 * time.Hour
	consumeTimeout = inPlaceLimit + time.Hour
	// stopGrace is what Stop takes beyond its context for what must not be cut short.
	stopGrace = 500 * time.Millisecond
	// lookTimeout is how long a client that looks at its group may wait for a broker that does not answer: 3 s for each
	// of its two topics.
	lookTimeout = 6 * time.Second
	// quietBeforeShutdown is how long the handlers must have been idle before the client is shut down.
	quietBeforeShutdown = 50 * time.Millisecond
	// restartDrain is how long the handlers in flight may take when the client is replaced.
	restartDrain = 10 * time.Second
)

// Consumer receives messages until it is stopped. Start and Stop may be called from any goroutine.
type Consumer struct {
	cfg      ConsumerConfig
	look     time.Duration   // what the client may take to look at its group: lookTimeout
	name     string          // of all its clients
	clients  int             // how many it has made; belongs to run
	ctx      context.Context // of the handlers; ends when Stop runs out of time
	cancel   context.CancelFunc
	life     context.Context // of everything else; ends with Stop
	endLife  context.CancelFunc
	inFlight atomic.Int64
	lastSeen atomic.Int64 // when a handler last ended, in ns of the monotonic clock
	begun    time.Time
	started  atomic.Bool // a client is connected
	ever     atomic.Bool // one was
	sentinel *sentinel
	restarts pacer
	once     sync.Once
	leaving  sync.Once
	left     chan struct{} // closed when the last client has given its queues up
	done     chan struct{} // closed when all has ended; stopErr is set then
	stopErr  error
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
	c := &Consumer{cfg: cfg, look: lookTimeout, name: InstanceName("consumer"), begun: time.Now(), left: make(chan struct{}), done: make(chan struct{}), sentinel: newSentinel(cfg.NameServers, cfg.Topic, cfg.Credentials)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.life, c.endLife = context.WithCancel(c.ctx)
	return c, nil
}

// Start begins to consume in the background. A broker that is not there yet, or a topic without a route, is tried
// again until Stop; Ready tells whether it worked.
func (c *Consumer) Start() {
	c.once.Do(func() { go c.run() })
}

// Ready reports nil while the consumer is connected to a broker of its topic, else why it is not.
func (c *Consumer) Ready() error {
	if !c.started.Load() {
		return fmt.Errorf("consumer %s is not connected to a broker of topic %s", c.cfg.Group, c.cfg.Topic)
	}
	return c.sentinel.ready()
}

// Begun tells whether the consumer was connected at some time.
func (c *Consumer) Begun() bool { return c.ever.Load() }

// run owns the client, from its making to its end. A client is replaced when a broker of the topic was away: left
// alone it would go on up to 33 s after the broker died.
func (c *Consumer) run() {
	defer close(c.done)
	defer c.leave()
	var watching sync.WaitGroup
	watching.Go(func() { c.sentinel.run(c.life) })
	defer watching.Wait()
	for {
		push := c.connect()
		if push == nil {
			return
		}
		c.ever.Store(true)
		c.started.Store(true)
		if !c.serve(push) {
			return
		}
		c.started.Store(false)
	}
}

// connect tries until a client has started. It returns nil when Stop came first.
func (c *Consumer) connect() client.PushConsumer {
	for wait := startRetryMin; c.life.Err() == nil; wait = min(2*wait, startRetryMax) {
		c.sentinel.forgetReturn() // the new client sees for itself what is there
		push, err := c.startClient()
		if err == nil {
			return push
		}
		c.cfg.Logger.Warn("consumer cannot start yet", zap.String("group", c.cfg.Group), zap.Error(err), zap.Duration("again_in", wait))
		if !sleep(c.life, wait) {
			break
		}
	}
	return nil
}

// serve lets the client consume until it has to be replaced, then it returns true, or until Stop. Either way the
// client has ended.
func (c *Consumer) serve(push client.PushConsumer) (again bool) {
	for c.awaitReturn() {
		c.cfg.Logger.Info("a broker was away and is back: the consumer starts again", zap.String("group", c.cfg.Group), zap.String("topic", c.cfg.Topic))
		push.Suspend()
		bound, cancel := context.WithTimeout(c.life, restartDrain)
		drained := c.drain(bound)
		cancel()
		switch {
		case drained:
			if err := c.shutdown(push); err != nil {
				c.cfg.Logger.Warn("the consumer's client did not end well", zap.String("group", c.cfg.Group), zap.Error(err))
			}
			return true
		case c.life.Err() == nil:
			push.Resume()
			c.cfg.Logger.Warn("handlers are busy, the consumer keeps its client: it goes on up to 33 s after the broker died",
				zap.String("group", c.cfg.Group), zap.Int64("handlers", c.inFlight.Load()))
		}
	}
	c.stopErr = c.end(push)
	return false
}

// awaitReturn waits until a broker that was away is back, and as long as restarts must be apart; false when Stop came
// first.
func (c *Consumer) awaitReturn() bool {
	select {
	case <-c.sentinel.returned:
		return sleep(c.life, c.restarts.next(time.Now()))
	case <-c.life.Done():
		return false
	}
}

// reachable tells whether a client would find its topic. A client whose Start fails leaves a dozen goroutines behind
// for ever, so none is made before.
func (c *Consumer) reachable() error {
	_, err := c.sentinel.masters(c.life)
	return err
}

// startClient makes a new client object for every try: one whose Start failed cannot be used again, nor shut down.
func (c *Consumer) startClient() (client.PushConsumer, error) {
	if err := c.reachable(); err != nil {
		return nil, err
	}
	resolver, err := Resolver(c.cfg.NameServers)
	if err != nil {
		return nil, err
	}
	c.clients++
	push, err := client.NewPushConsumer(
		consumer.WithNsResolver(resolver),
		consumer.WithCredentials(c.cfg.Credentials.client()),
		consumer.WithGroupName(c.cfg.Group),
		consumer.WithInstance(generation(c.name, c.clients)),
		consumer.WithStrategy(allocate),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumeGoroutineNums(c.cfg.Concurrency),
		consumer.WithConsumeTimeout(consumeTimeout),
		consumer.WithPullThresholdForTopic(4096),
		consumer.WithPullThresholdSizeForTopic(64),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if len(c.cfg.Tags) > 0 {
		selector.Expression = strings.Join(c.cfg.Tags, " || ")
	}
	if err := push.Subscribe(c.cfg.Topic, selector, c.consume); err != nil {
		return nil, err
	}
	return push, push.Start()
}

func (c *Consumer) consume(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	result := c.handleAll(msgs)
	if result != consumer.ConsumeSuccess && c.ctx.Err() != nil {
		// Sending it back would spend one of its retries, and there are 16. What the client does not answer for, because
		// the queue is no longer its own, the group's next consumer gets at once.
		<-c.left
	}
	return result, nil
}

func (c *Consumer) handleAll(msgs []*primitive.MessageExt) consumer.ConsumeResult {
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
			return consumer.ConsumeRetryLater
		}
	}
	return consumer.ConsumeSuccess
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
	c.once.Do(func() { close(c.done) }) // Start after Stop does nothing
	defer c.cancel()
	c.endLife()
	select {
	case <-c.done:
		return c.stopErr
	case <-ctx.Done():
		c.cancel()
	}
	last := time.NewTimer(4*stopGrace + c.look) // what end and shutdown take at most
	defer last.Stop()
	select {
	case <-c.done:
		return c.stopErr
	case <-last.C:
		return fmt.Errorf("consumer %s: still connecting, it ends once the client gives up", c.cfg.Group)
	}
}

// end suspends the client, waits for the handlers as long as Stop does, and shuts the client down.
func (c *Consumer) end(push client.PushConsumer) error {
	push.Suspend()
	drained := c.drain(c.ctx)
	if !drained {
		grace, cancel := context.WithTimeout(context.Background(), stopGrace)
		drained = c.drain(grace)
		cancel()
	}
	err := c.shutdown(push)
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
func (c *Consumer) shutdown(push client.PushConsumer) error {
	done := make(chan error, 1)
	go func() {
		if p, ok := push.(interface{ PersistConsumerOffset() error }); ok {
			_ = p.PersistConsumerOffset() // lost offsets mean redelivery, which consumers must bear anyway
		}
		// Shutdown closes the channel of every queue the client still has, and a pull that is answered just then
		// would send on it and end the process. A rebalance without subscriptions gives all queues up before.
		if r, ok := behind(push); ok {
			_ = push.Unsubscribe(c.cfg.Topic)
			_ = push.Unsubscribe("%RETRY%" + c.cfg.Group)
			r.RebalanceImmediately()
		}
		if c.life.Err() != nil {
			c.leave()
		}
		done <- push.Shutdown()
	}()
	bound := time.NewTimer(2*stopGrace + c.look)
	defer bound.Stop()
	select {
	case err := <-done:
		return err
	case <-bound.C:
		return errors.New("RocketMQ consumer: shutdown did not return in time")
	}
}

// leave lets the handlers go that wait for the queues to be given up.
func (c *Consumer) leave() { c.leaving.Do(func() { close(c.left) }) }

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
