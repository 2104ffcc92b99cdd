package checkback

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Answer is what the broker is told. The zero value is Unknown: it asks again.
type Answer int

// The answers.
const (
	Unknown Answer = iota
	Commit
	Rollback
)

func (a Answer) String() string {
	switch a {
	case Commit:
		return "commit"
	case Rollback:
		return "rollback"
	}
	return "unknown"
}

// Config makes a Checker.
type Config struct {
	// Resolvers by event type; Checker.Register adds more. A half message of any other type is answered UNKNOWN, never
	// guessed.
	Resolvers map[string]Resolver
	// Grace is the age below which a half message without a trace is left alone. It must be at least the broker's
	// transactionTimeOut, and above the deadline of a local transaction. Defaults to 10 s.
	Grace time.Duration
	// Deadline bounds one check. Defaults to 2 s. Checks are answered one at a time: a slow one delays the rest.
	Deadline time.Duration
	// Logger defaults to a no-op, Registerer to none.
	Logger     *zap.Logger
	Registerer prometheus.Registerer
	// Hooks are crash points for tests.
	Hooks Hooks
}

// Hooks are called at the named points when they are set.
type Hooks struct {
	BeforeAnswer func()
}

// Checker decides about half messages. It is safe for concurrent use.
type Checker struct {
	cfg       Config
	resolvers *registry
	answers   *prometheus.CounterVec
}

// The reasons of an answer, a label of the metric.
const (
	reasonRow         = "row"
	reasonTombstone   = "tombstone"
	reasonSuperseded  = "superseded"
	reasonYoung       = "young"
	reasonBuried      = "buried"
	reasonError       = "error"
	reasonPanic       = "panic"
	reasonDown        = "down"
	reasonUnknownType = "unknown_type"
	reasonUndecidable = "undecidable"
)

// New returns a Checker.
func New(cfg Config) (*Checker, error) {
	if cfg.Grace == 0 {
		cfg.Grace = 10 * time.Second
	}
	if cfg.Deadline == 0 {
		cfg.Deadline = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	c := &Checker{cfg: cfg, resolvers: newRegistry(cfg.Resolvers), answers: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "halfbox_checkback_answers_total",
		Help: "Answers given to the broker's check-backs, by answer and reason.",
	}, []string{"answer", "reason"})}
	for reason, answer := range map[string]Answer{
		reasonRow: Commit, reasonTombstone: Rollback, reasonSuperseded: Rollback, reasonBuried: Rollback,
		reasonYoung: Unknown, reasonError: Unknown, reasonPanic: Unknown, reasonDown: Unknown, reasonUnknownType: Unknown,
		reasonUndecidable: Unknown,
	} {
		c.answers.WithLabelValues(answer.String(), reason)
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(c.answers); err != nil {
			return nil, fmt.Errorf("checkback: %w", err)
		}
	}
	return c, nil
}

// Check decides about a half message. It never panics, and it returns soon after the deadline even when a Resolver
// does not.
func (c *Checker) Check(ctx context.Context, h Half) Answer {
	return c.check(ctx, h, c.cfg.Grace).answer
}

// Settle decides like Check about a half message that nobody will ask about again: it spares no young transaction,
// and UNKNOWN means that a local transaction is open or that the database has not answered. It returns an error that
// wraps ErrUndecidable when asking again is of no use.
func (c *Checker) Settle(ctx context.Context, h Half) (Answer, error) {
	v := c.check(ctx, h, 0)
	if v.reason == reasonUndecidable {
		return v.answer, v.err
	}
	return v.answer, nil
}

// Knows tells whether half messages of an event type can be decided at all.
func (c *Checker) Knows(eventType string) bool {
	_, ok := c.resolvers.find(eventType)
	return ok
}

func (c *Checker) check(ctx context.Context, h Half, grace time.Duration) (v verdict) {
	log := c.cfg.Logger.With(zap.String("msg_id", h.MsgID), zap.String("type", h.Type), zap.String("biz_no", h.BizNo))
	defer func() {
		if p := recover(); p != nil {
			// A panic that leaves the client's check loop would end it for good.
			v = verdict{Unknown, reasonPanic, fmt.Errorf("panic: %v", p), debug.Stack()}
		}
		c.answers.WithLabelValues(v.answer.String(), v.reason).Inc()
		report(log, v)
	}()
	v = c.judge(ctx, h, grace)
	if c.cfg.Hooks.BeforeAnswer != nil {
		c.cfg.Hooks.BeforeAnswer()
	}
	return v
}

// report writes one line for each answer, except while the database is down: the metric counts those.
func report(log *zap.Logger, v verdict) {
	fields := []zap.Field{zap.Stringer("answer", v.answer), zap.String("reason", v.reason)}
	switch {
	case v.reason == reasonDown:
		log.Debug("check-back answered without the database", fields...)
	case v.stack != nil:
		log.Error("check-back panicked", append(fields, zap.Error(v.err), zap.ByteString("stack", v.stack))...)
	case v.err != nil:
		log.Warn("check-back cannot decide now", append(fields, zap.Error(v.err))...)
	default:
		log.Info("check-back answered", fields...)
	}
}

func (c *Checker) judge(ctx context.Context, h Half, grace time.Duration) verdict {
	s, ok := c.resolvers.find(h.Type)
	if !ok {
		return verdict{Unknown, reasonUnknownType, fmt.Errorf("no resolver for event type %q", h.Type), nil}
	}
	if id, err := uuid.Parse(h.MsgID); err != nil || id.String() != h.MsgID {
		return verdict{Unknown, reasonUndecidable, fmt.Errorf("%w: %q is no attempt's id", ErrUndecidable, h.MsgID), nil}
	}
	return s.check(ctx, c.cfg.Deadline, func(ctx context.Context) verdict {
		answer, reason, err := decide(ctx, s.Resolver, h, grace)
		if errors.Is(err, ErrUndecidable) {
			reason = reasonUndecidable
		}
		return verdict{answer, reason, err, nil}
	})
}

func decide(ctx context.Context, r Resolver, h Half, grace time.Duration) (Answer, string, error) {
	answer, reason, err := look(ctx, r, h)
	if err != nil || reason != "" {
		return answer, reason, err
	}
	if grace > 0 && time.Since(h.BornAt) < grace {
		return Unknown, reasonYoung, nil
	}
	err = r.Bury(ctx, h)
	if err == nil {
		return Rollback, reasonBuried, nil
	}
	if !errors.Is(err, ErrTaken) {
		return Unknown, reasonError, err
	}
	// The local transaction, or another instance's tombstone, was faster: its row is committed now.
	answer, reason, err = look(ctx, r, h)
	if err == nil && reason == "" {
		return Unknown, reasonError, errors.New("the key is taken, but no row is seen")
	}
	return answer, reason, err
}

// look turns a finding into an answer; the reason is empty when there is no trace.
func look(ctx context.Context, r Resolver, h Half) (Answer, string, error) {
	finding, err := r.Find(ctx, h)
	if err != nil {
		return Unknown, reasonError, err
	}
	switch finding {
	case Void:
		return Rollback, reasonTombstone, nil
	case Committed:
		return Commit, reasonRow, nil
	case Superseded:
		return Rollback, reasonSuperseded, nil
	case Absent:
		return Unknown, "", nil
	}
	return Unknown, reasonError, fmt.Errorf("the resolver's finding %d is none", finding)
}
