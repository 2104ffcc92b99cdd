package txmsg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/sony/gobreaker/v2"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

// ErrStopped is the cause when a Producer is used before Start or after Stop.
var ErrStopped = errors.New("txmsg: producer is not running")

// Producer sends events as transactional messages. Make one for the life of the process: the client behind it
// leaves goroutines behind when it is shut down.
type Producer struct {
	cfg      Config
	instance string // the client's id ends in it
	client   client.TransactionProducer
	listener listener
	checking gate
	breaker  *gobreaker.TwoStepCircuitBreaker[struct{}]
	metrics  *metrics

	senders   *senders    // half messages and their END_TRANSACTION
	attempts  sync.Map    // msg_id -> *attempt, while its half message is on its way or its local transaction runs
	connected atomic.Bool // the client has started
	ready     atomic.Bool
	routed    chan struct{}   // closed when the topic's broker has been found
	checks    context.Context // of check-backs; ends with Stop
	endCheck  context.CancelFunc
	warming   context.Context // of the warm-up and of idle senders; ends when Stop begins
	endWarm   context.CancelFunc

	mu      sync.Mutex // guards running and the Add of work against Stop's Wait
	running bool
	stopped bool
	calls   sync.WaitGroup // PublishInTx
	loops   sync.WaitGroup
}

// answerSent is what the client gets to send the answer of a check-back, which it does after we have given it.
const answerSent = 20 * time.Millisecond

// New returns a Producer that has not started yet.
func New(cfg Config) (*Producer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Producer{cfg: cfg, routed: make(chan struct{}), breaker: newBreaker(cfg.Breaker)}
	p.instance = rocketmq.InstanceName("txmsg")
	p.checks, p.endCheck = context.WithCancel(context.Background())
	p.warming, p.endWarm = context.WithCancel(context.Background())
	p.senders = newSenders(p.warming.Done())
	var err error
	if p.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	opts, err := rocketmq.ProducerConfig{
		NameServers: cfg.NameServers, Credentials: rocketmq.Credentials{AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey},
		Group: cfg.Group, SendTimeout: cfg.HalfTimeout, Instance: p.instance,
	}.Options("txmsg")
	if err != nil {
		return nil, fmt.Errorf("txmsg: %w", err)
	}
	p.listener = newListener(p)
	opts = append(opts, producer.WithQueueSelector(newWarmupSelector()))
	if p.client, err = client.NewTransactionProducer(p.listener, opts...); err != nil {
		return nil, fmt.Errorf("txmsg: %w", err)
	}
	return p, nil
}

// Start connects in the background: it does not fail when no broker is there, and PublishInTx may be called at once.
func (p *Producer) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.running {
		return nil
	}
	p.running = true
	p.loops.Go(p.connect)
	return nil
}

// Ready reports nil once the broker knows this producer, so that it can be asked about half messages.
func (p *Producer) Ready() error {
	if !p.ready.Load() {
		return fmt.Errorf("producer group %s is not known to the broker yet", p.cfg.Group)
	}
	return nil
}

// Stop lets the calls under way end, then the END_TRANSACTIONs, then shuts the client down. What ctx cuts short is
// repaired by check-backs. Stop may be called before Start and more than once.
func (p *Producer) Stop(ctx context.Context) error {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return nil
	}
	p.stopped = true
	started := p.running
	p.running = false
	p.mu.Unlock()
	p.endWarm()
	defer p.endCheck()
	defer p.listener.p.Store(nil)
	if !started {
		return nil
	}
	var errs []error
	if !waitFor(ctx, &p.loops) {
		errs = append(errs, errors.New("txmsg: still looking for the broker"))
	}
	if !waitFor(ctx, &p.calls) {
		errs = append(errs, errors.New("txmsg: local transactions still running"))
	}
	if !waitFor(ctx, &p.senders.running) {
		errs = append(errs, errors.New("txmsg: END_TRANSACTION still being sent; check-backs will repair it"))
	}
	p.endCheck() // the one under way is answered UNKNOWN
	if ago, drained := p.checking.close(ctx); drained && ago < answerSent {
		<-time.After(answerSent - ago)
	}
	if p.connected.Load() {
		orderForRaceDetector()
		if err := p.client.Shutdown(); err != nil {
			errs = append(errs, fmt.Errorf("txmsg: %w", err))
		}
	}
	return errors.Join(errs...)
}

// enter registers a call; the caller defers p.calls.Done.
func (p *Producer) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running {
		p.calls.Add(1)
	}
	return p.running
}

func waitFor(ctx context.Context, wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	// What has ended already needs no time, only its turn.
	last := time.NewTimer(10 * time.Millisecond)
	defer last.Stop()
	select {
	case <-done:
		return true
	case <-last.C:
		return false
	}
}
