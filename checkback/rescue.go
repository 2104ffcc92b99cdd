package checkback

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/deadletter"
	"github.com/halfbox/halfbox/internal/progress"
	"github.com/halfbox/halfbox/internal/remoting"
)

// Rescuer decides the half messages that the broker has given up on. It is safe for concurrent use.
type Rescuer struct {
	cfg      RescueConfig
	creds    remoting.Credentials
	log      *zap.Logger
	metrics  *rescueMetrics
	progress progress.Store
	owner    string

	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	done   chan struct{} // nil until Start

	held map[string]holdup // by queue; of the loop only
	ours map[string]bool   // queues whose lease may be ours; of the loop only
}

// holdup is a half message that cannot be decided yet.
type holdup struct {
	offset int64
	logged time.Time
}

// heldLogInterval is how often a half message that holds the others up is logged.
const heldLogInterval = time.Minute

// NewRescuer returns a Rescuer; Start lets it work.
func NewRescuer(cfg RescueConfig) (*Rescuer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newRescueMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	r := &Rescuer{
		cfg: cfg, creds: remoting.Credentials{AccessKey: cfg.AccessKey, SecretKey: cfg.SecretKey},
		log: cfg.Logger.Named("rescue"), metrics: m, progress: progress.NewStore(cfg.DB), owner: newOwner(),
		held: map[string]holdup{}, ours: map[string]bool{},
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Start begins to look, in the background. Neither the broker nor the database need be there yet.
func (r *Rescuer) Start() error {
	r.done = make(chan struct{})
	go r.loop()
	return nil
}

// Stop ends the work and gives the leases back. ctx bounds the wait; what is open then is undone by the database.
func (r *Rescuer) Stop(ctx context.Context) error {
	r.cancel()
	if r.done == nil {
		return nil
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("checkback: rescue is still at work: %w", context.Cause(ctx))
	}
}

func (r *Rescuer) loop() {
	defer close(r.done)
	defer r.release()
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-poll.C:
		}
		more, err := r.round()
		if err != nil && r.ctx.Err() == nil {
			r.metrics.errors.Inc()
			r.log.Warn("rescue cannot go on now", zap.Error(err), zap.Duration("again_in", r.cfg.Poll))
		}
		if more && err == nil {
			poll.Reset(0)
		} else {
			poll.Reset(r.cfg.Poll)
		}
	}
}

// releaseTimeout bounds what a stop waits for the database: longer than a lock wait.
const releaseTimeout = 3 * time.Second

// release gives the leases back, as far as the database answers.
func (r *Rescuer) release() {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	for name := range r.ours {
		if err := r.progress.Release(ctx, name, r.owner); err != nil {
			r.log.Warn("lease is left to its end", zap.Error(err))
		}
	}
}

// round looks at every queue once; more tells that another round at once makes sense. No queue keeps another from
// being looked at.
func (r *Rescuer) round() (more bool, err error) {
	defer recovered(&more, &err)
	queues, err := r.queues()
	if err != nil {
		return false, err
	}
	var errs []error
	var behind int64
	for _, q := range queues {
		q := &queue{Rescuer: r, Queue: q, name: progressName(r.cfg.Group, q)}
		again, err := q.look()
		if err != nil && !errors.Is(err, progress.ErrLost) { // another rescuer's turn
			errs = append(errs, fmt.Errorf("queue %d of broker %s: %w", q.ID, q.Broker, err))
		}
		more = more || again
		behind += max(q.max-q.next, 0)
	}
	r.metrics.behind.Set(float64(behind))
	r.metrics.held.Set(float64(len(r.held)))
	return more, errors.Join(errs...)
}

// queues are those of the topic of discarded half messages. One that is not there yet has none: nothing was given up.
func (r *Rescuer) queues() ([]remoting.Queue, error) {
	return remoting.FirstAnswer(r.ctx, r.cfg.NameServers, func(ctx context.Context, ns string) ([]remoting.Queue, error) {
		return remoting.Queues(ctx, ns, DiscardedTopic, r.creds)
	})
}

// queue is one look at a queue.
type queue struct {
	*Rescuer
	remoting.Queue
	name   string
	stored string // the position in the table
	next   int64  // where to read on
	max    int64  // the queue's end
}

// look reads what is there and decides it; more tells that there is more to read.
func (q *queue) look() (more bool, err error) {
	defer recovered(&more, &err)
	if q.stored, err = q.progress.Position(q.ctx, q.name); err != nil {
		return false, err
	}
	if q.next, err = offset(q.stored); err != nil {
		return false, err
	}
	pulled, err := remoting.Pull(q.ctx, q.Addr, remoting.PullRequest{
		Group: q.cfg.PullGroup, Topic: DiscardedTopic, Queue: q.ID, Offset: q.next, Max: q.cfg.Batch,
	}, q.creds)
	if errors.Is(err, remoting.ErrNoTopic) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	q.max = pulled.Max
	if len(pulled.Messages) == 0 && !pulled.Moved {
		delete(q.held, q.name)
		return false, nil
	}
	q.ours[q.name] = true // also when the answer is lost
	position, held, err := q.progress.Claim(q.ctx, q.name, q.owner, q.cfg.Lease)
	switch {
	case err != nil:
		return false, err
	case held:
		delete(q.held, q.name)
		delete(q.ours, q.name)
		return false, nil
	case position != q.stored:
		return true, nil // another rescuer was faster; what was pulled is old
	case pulled.Moved:
		return q.moved(pulled)
	}
	return q.settleAll(pulled.Messages)
}

// recovered turns a panic into the error of a round.
func recovered(more *bool, err *error) {
	if p := recover(); p != nil {
		*more, *err = false, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

func offset(position string) (int64, error) {
	if position == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(position, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("position in t_progress: %w", err)
	}
	return n, nil
}

// moved goes on where the broker still has messages.
func (q *queue) moved(p remoting.Pulled) (more bool, err error) {
	to := p.Next
	fields := []zap.Field{zap.String("broker", q.Broker), zap.Int("queue", q.ID), zap.Int64("position", q.next), zap.Int64("min", p.Min), zap.Int64("max", p.Max)}
	switch {
	case q.next > p.Max:
		// The broker's storage is a new one. Reading anything twice is harmless.
		to = p.Min
		q.log.Error("the queue of discarded half messages ends before the rescue's position: reading it from its begin", fields...)
	case q.stored == "":
		q.log.Info("reading discarded half messages from the queue's begin", fields...)
	default:
		q.trimmed(max(to, p.Min) - q.next)
	}
	if to < p.Min || to > p.Max {
		to = p.Min
	}
	if to == q.next {
		return false, nil
	}
	q.next = to
	return true, q.flush()
}

// trimmed counts half messages that the broker deleted before they were looked at.
func (q *queue) trimmed(n int64) {
	if n <= 0 {
		return
	}
	q.metrics.trimmed.Add(float64(n))
	q.log.Error("the broker deleted discarded half messages before they were looked at: compare the orders with the points",
		zap.String("broker", q.Broker), zap.Int("queue", q.ID), zap.Int64("from", q.next), zap.Int64("half_messages", n))
}

// settleAll decides half messages in their order, up to the first one that cannot be decided.
func (q *queue) settleAll(halves []remoting.Message) (more bool, err error) {
	for _, m := range halves {
		if q.ctx.Err() != nil {
			return false, q.ctx.Err()
		}
		if m.QueueOffset > q.next && q.stored != "" {
			q.trimmed(m.QueueOffset - q.next)
		}
		// Whose a malformed one is nobody can tell.
		if m.Malformed == nil && m.Properties[remoting.PropertyProducerGroup] != q.cfg.Group {
			q.metrics.halves.WithLabelValues(rescuedForeign).Inc()
			q.next = m.QueueOffset + 1
			continue
		}
		decided, err := q.settle(m)
		if err != nil {
			return false, err
		}
		if !decided {
			q.hold(m)
			return false, q.flush()
		}
		delete(q.held, q.name)
	}
	return true, q.flush()
}

// settle decides one half message and moves past it; false when it cannot be decided yet.
func (q *queue) settle(m remoting.Message) (decided bool, err error) {
	if m.Malformed != nil {
		return true, q.bury(m, m.Malformed)
	}
	h := Half{
		MsgID: m.Properties[remoting.PropertyUniqueKey], Type: m.Properties[remoting.PropertyTags],
		BizNo: m.Properties[remoting.PropertyKeys], BornAt: m.BornAt,
	}
	if !q.cfg.Checker.Knows(h.Type) {
		return true, q.bury(m, fmt.Errorf("no resolver for event type %q", h.Type))
	}
	ev, err := eventOf(m, h)
	if err != nil {
		return true, q.bury(m, err)
	}
	answer, err := q.cfg.Checker.Settle(q.ctx, h)
	switch {
	case err != nil:
		return true, q.bury(m, err)
	case answer == Commit:
		return true, q.republish(m, ev, h.MsgID)
	case answer == Rollback:
		// The tombstone is there, or another attempt has won: asked again the answer is the same.
		return true, q.pass(m, rescuedRolledBack, func(*gorm.DB) error { return nil })
	}
	return false, nil
}

// eventOf reads the event that a half message carries.
func eventOf(m remoting.Message, h Half) (halfbox.Event, error) {
	if m.BodyErr != nil {
		return halfbox.Event{}, m.BodyErr
	}
	id, ev, err := halfbox.Decode(m.Body)
	if err != nil {
		return halfbox.Event{}, err
	}
	if id != h.MsgID || ev.Type != h.Type || ev.Subject != h.BizNo {
		return halfbox.Event{}, fmt.Errorf("body names message %q, type %q, subject %q; the half message is %q, %q, %q", id, ev.Type, ev.Subject, h.MsgID, h.Type, h.BizNo)
	}
	// What no strategy would have sent no database need be asked about.
	if _, err := halfbox.Encode(ev, id); err != nil {
		return halfbox.Event{}, err
	}
	ev.Destination = m.Properties[remoting.PropertyRealTopic]
	return ev, nil
}

// republish records the event for the outbox under the half message's own id.
func (q *queue) republish(m remoting.Message, ev halfbox.Event, msgID string) error {
	outcome := rescuedRepublished
	err := q.pass(m, "", func(tx *gorm.DB) error {
		outcome = rescuedRepublished
		err := q.cfg.Records.WriteTx(tx, ev, halfbox.Attempt{MsgID: msgID, Delivery: halfbox.DeliveryOutbox})
		if errors.Is(err, ErrRecorded) {
			outcome = rescuedRecorded
			return nil
		}
		return err
	})
	if errors.Is(err, ErrUnrecordable) {
		return q.bury(m, err)
	}
	if err != nil {
		return err
	}
	q.metrics.halves.WithLabelValues(outcome).Inc()
	if outcome == rescuedRepublished {
		q.cfg.Nudge()
	}
	q.log.Warn("half message that the broker had given up on has committed", zap.String("msg_id", msgID),
		zap.String("type", ev.Type), zap.String("biz_no", ev.Subject), zap.String("outcome", outcome))
	return nil
}

// bury keeps a half message that can never be decided or published, and moves past it.
func (q *queue) bury(m remoting.Message, why error) error {
	id := m.Properties[remoting.PropertyUniqueKey]
	if id == "" {
		id = fmt.Sprintf("%s/%d@%d", q.Broker, q.ID, m.QueueOffset)
	}
	topic := m.Properties[remoting.PropertyRealTopic]
	if len(topic) > 127 || strings.ContainsFunc(topic, func(c rune) bool { return c > 0x7E }) {
		topic = DiscardedTopic // no topic of RocketMQ's is like that
	}
	err := q.pass(m, rescuedDeadLetter, func(tx *gorm.DB) error {
		return deadletter.Keep(tx, q.cfg.DB.Dialect, deadletter.Letter{
			Consumer: DeadLetterConsumer, MsgID: id, Topic: topic, Reason: why.Error(), Body: m.Body,
		})
	})
	if err == nil {
		q.log.Error("half message that the broker had given up on cannot be decided: it is kept in t_dead_letter",
			zap.String("msg_id", id), zap.String("topic", topic), zap.Error(why))
	}
	return err
}

// pass runs effect and moves past m, in one transaction.
func (q *queue) pass(m remoting.Message, outcome string, effect func(tx *gorm.DB) error) error {
	to := strconv.FormatInt(m.QueueOffset+1, 10)
	err := q.cfg.DB.InTx(q.ctx, func(tx *gorm.DB) error {
		if err := effect(tx); err != nil {
			return err
		}
		q.cfg.Hooks.BeforeAdvance()
		return q.progress.Advance(tx, q.name, q.owner, q.stored, to, q.cfg.Lease)
	})
	if err != nil {
		return err // also of an unknown outcome: the next look reads the position
	}
	q.stored, q.next = to, m.QueueOffset+1
	if outcome != "" {
		q.metrics.halves.WithLabelValues(outcome).Inc()
	}
	return nil
}

// flush stores the position after half messages that left nothing to do.
func (q *queue) flush() error {
	to := strconv.FormatInt(q.next, 10)
	if to == q.stored || q.stored == "" && q.next == 0 {
		return nil
	}
	err := q.cfg.DB.InTx(q.ctx, func(tx *gorm.DB) error {
		return q.progress.Advance(tx, q.name, q.owner, q.stored, to, q.cfg.Lease)
	})
	if err == nil {
		q.stored = to
	}
	return err
}

// hold notes that m cannot be decided yet.
func (q *queue) hold(m remoting.Message) {
	h := q.held[q.name]
	if h.offset != m.QueueOffset || time.Since(h.logged) >= heldLogInterval {
		q.log.Warn("half message that the broker had given up on cannot be decided yet, the later ones wait",
			zap.String("msg_id", m.Properties[remoting.PropertyUniqueKey]), zap.String("broker", q.Broker), zap.Int64("offset", m.QueueOffset))
		h = holdup{m.QueueOffset, time.Now()}
	}
	q.held[q.name] = h
}
