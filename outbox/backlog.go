package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/database"
)

// ErrBacklog means that a write was refused because the records before it have waited too long.
var ErrBacklog = errors.New("outbox: the backlog is too old")

// BacklogPolicy is what a Writer does while the backlog is older than its limit.
type BacklogPolicy string

// The policies.
const (
	BacklogWarn   BacklogPolicy = "warn"   // log and count
	BacklogRefuse BacklogPolicy = "refuse" // answer ErrBacklog before anything is written
)

// sqlOldestDue is the overdue time of the record that has been due longest, in microseconds: one look into the index.
// {held} is empty or passes over keys.
const (
	sqlOldestDue = `SELECT {overdue} FROM t_event_record {by due} WHERE status = ? AND sink = ?{held} ORDER BY next_retry_time, id LIMIT 1`
	sqlNotHeld   = ` AND partition_key NOT IN ?`
)

// maxHeld is how many keys that a dead letter holds are passed over.
const maxHeld = 1000

func overdueMicros(d database.Dialect) string {
	if d == database.MySQL {
		return "TIMESTAMPDIFF(MICROSECOND, next_retry_time, UTC_TIMESTAMP(6))"
	}
	return "CAST((julianday('now') - julianday(next_retry_time)) * 86400000000 AS INTEGER)"
}

// oldestDue is how long the record of a sink that has been due longest is due, in WAIT or SENDING; 0 without one. Where
// dead letters block, what waits behind one does not count.
func (s store) oldestDue(ctx context.Context, sink string, block bool) (time.Duration, error) {
	query, args, err := s.oldestDueSQL(ctx, sink, block)
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for _, status := range []Status{StatusWait, StatusSending} {
		found, err := collect(s.db.Read.WithContext(ctx).Raw(query, append([]any{status}, args...)...), func(rs *sql.Rows) (micros int64, err error) {
			return micros, rs.Scan(&micros)
		})
		if err != nil {
			return 0, err
		}
		if len(found) > 0 {
			longest = max(longest, time.Duration(found[0])*time.Microsecond)
		}
	}
	return longest, nil
}

// oldestDueSQL returns the query, and its arguments behind the status.
func (s store) oldestDueSQL(ctx context.Context, sink string, block bool) (string, []any, error) {
	args, held := []any{sink}, ""
	if block {
		dead, err := s.deadKeys(ctx, sink, "", maxHeld)
		if err != nil {
			return "", nil, err
		}
		if len(dead) > 0 {
			keys := make([]string, len(dead))
			for i, k := range dead {
				keys[i] = k.Key
			}
			args, held = append(args, keys), sqlNotHeld
		}
	}
	return s.dialect.Replace(strings.Replace(sqlOldestDue, "{held}", held, 1)), args, nil
}

// BacklogConfig makes a Backlog. Zero values mean the defaults.
type BacklogConfig struct {
	// DB holds t_event_record.
	DB *database.DB
	// Sink is the name of the sink whose records are watched.
	Sink string
	// HeadOfLine is the policy of a sink that keeps the order of its keys, as in RelayConfig.Ordered; empty for others.
	// With HeadOfLineBlock, records of a key that a dead letter holds do not count: they wait for an operator, not for a
	// relay, and one key shall not refuse the writes of all. Of more than 1000 such keys the others count.
	HeadOfLine HeadOfLine
	// Limit is the age that the backlog may reach. Defaults to 5 min.
	Limit time.Duration
	// Policy is what a Writer does beyond it. Defaults to BacklogWarn.
	Policy BacklogPolicy
	// Interval is how often the database is asked. Defaults to 2 s.
	Interval time.Duration
	// Timeout bounds one question. Defaults to 2 s.
	Timeout time.Duration
	// Logger defaults to a no-op.
	Logger *zap.Logger
	// Registerer takes the metrics. Optional. Several on one registry need a label each, see
	// prometheus.WrapRegistererWith.
	Registerer prometheus.Registerer
}

func (c BacklogConfig) withDefaults() BacklogConfig {
	c.Limit = cmp.Or(c.Limit, 5*time.Minute)
	c.Policy = cmp.Or(c.Policy, BacklogWarn)
	c.Interval = cmp.Or(c.Interval, 2*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 2*time.Second)
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c BacklogConfig) validate() error {
	switch {
	case c.DB == nil:
		return errors.New("outbox: BacklogConfig.DB is missing")
	case !validSinkName(c.Sink):
		return fmt.Errorf("outbox: BacklogConfig.Sink %q is not a name of 1 to %d printable ASCII characters", c.Sink, maxSink)
	case c.HeadOfLine != "" && c.HeadOfLine != HeadOfLineBlock && c.HeadOfLine != HeadOfLinePark:
		return fmt.Errorf("outbox: BacklogConfig.HeadOfLine %q is neither %q nor %q", c.HeadOfLine, HeadOfLineBlock, HeadOfLinePark)
	case c.Limit < time.Millisecond, c.Interval < time.Millisecond, c.Timeout < time.Millisecond:
		return errors.New("outbox: BacklogConfig.Limit, Interval and Timeout must be at least 1 ms")
	case c.Policy != BacklogWarn && c.Policy != BacklogRefuse:
		return fmt.Errorf("outbox: BacklogConfig.Policy %q is neither %q nor %q", c.Policy, BacklogWarn, BacklogRefuse)
	}
	return nil
}

// staleAfter is the number of intervals after which what was last seen says nothing any more.
const staleAfter = 5

// Backlog watches, from the process that writes, how long the records of a sink have been due, so that a writer knows
// of a relay that is down or behind, wherever it should run. A Writer takes it in WriterConfig.Backlog. It runs once,
// from Start to Stop, and is safe for concurrent use.
//
// The age is the database's time less the due time of the record in WAIT or SENDING that is due longest. For a record
// that was never retried this is the time since it was written; a dead letter that is redriven begins anew, and one
// poisoned record in its backoff is no backlog; nor is what waits behind a dead letter, see BacklogConfig.HeadOfLine.
//
// Over the limit means above it, and lasts until the age is below three quarters of it. When the database cannot be
// asked for five intervals, nothing is known and nothing is refused.
type Backlog struct {
	cfg     BacklogConfig
	store   store
	metrics backlogMetrics

	mu    sync.Mutex
	age   time.Duration
	over  bool
	known time.Time // when age was last seen

	life    sync.Mutex
	stop    context.CancelFunc
	stopped bool
	done    chan struct{}
}

type backlogMetrics struct {
	oldest, over prometheus.Gauge
	errors       prometheus.Counter
}

// NewBacklog returns a Backlog; it knows nothing before Start.
func NewBacklog(cfg BacklogConfig) (*Backlog, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	labels := prometheus.Labels{"sink": cfg.Sink}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help, ConstLabels: labels})
	}
	m := backlogMetrics{
		oldest: gauge("oldest_unsent_seconds", "How long the record that is due longest has been due, as the writing process sees it."),
		over:   gauge("backlog_over_limit", "1 while that is over the limit of the backlog."),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricPrefix + "backlog_sample_errors_total", Help: "Questions for the age of the backlog that failed.", ConstLabels: labels,
		}),
	}
	if err := register(cfg.Registerer, m.oldest, m.over, m.errors); err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.Named("outbox.backlog").With(zap.String("sink", cfg.Sink))
	return &Backlog{cfg: cfg, store: newStore(cfg.DB), metrics: m}, nil
}

// Start begins to watch in the background. It fails when it was started or stopped before.
func (b *Backlog) Start() error {
	b.life.Lock()
	defer b.life.Unlock()
	if b.stopped {
		return errors.New("outbox: backlog is stopped")
	}
	if b.stop != nil {
		return errors.New("outbox: backlog was started before")
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.stop, b.done = cancel, make(chan struct{})
	go func() {
		defer close(b.done)
		every(ctx, b.cfg.Logger, "backlog", b.cfg.Interval, b.sample)
	}()
	return nil
}

// Stop ends the watching and waits for it. It may be called at any time and more than once.
func (b *Backlog) Stop(ctx context.Context) error {
	b.life.Lock()
	defer b.life.Unlock()
	b.stopped = true
	if b.stop == nil {
		return nil
	}
	b.stop()
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("outbox: backlog: %w", context.Cause(ctx))
	}
}

// sample asks the database once.
func (b *Backlog) sample(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	age, err := b.store.oldestDue(asked, b.cfg.Sink, b.cfg.HeadOfLine == HeadOfLineBlock)
	if err != nil {
		if ctx.Err() == nil {
			b.metrics.errors.Inc()
			b.forget()
		}
		return err
	}
	b.observe(age)
	return nil
}

// forget opens the gate when the last answer is too old to be relied on.
func (b *Backlog) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over && b.stale() {
		b.over = false
		b.metrics.over.Set(0)
		b.cfg.Logger.Warn("the age of the backlog is not known any more, writes are accepted")
	}
}

func (b *Backlog) stale() bool { return time.Since(b.known) > staleAfter*b.cfg.Interval }

func (b *Backlog) observe(age time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.over
	b.age, b.known = age, time.Now()
	b.over = age > b.cfg.Limit || was && age >= b.cfg.Limit/4*3
	b.metrics.oldest.Set(age.Seconds())
	fields := []zap.Field{zap.Duration("age", age), zap.Duration("limit", b.cfg.Limit), zap.String("policy", string(b.cfg.Policy))}
	switch {
	case b.over && !was:
		b.metrics.over.Set(1)
		b.cfg.Logger.Warn("the backlog is too old: is a relay running, and does it reach the sink?", fields...)
	case !b.over && was:
		b.metrics.over.Set(0)
		b.cfg.Logger.Info("the backlog is within its limit again", fields...)
	}
}

// Age returns how long the record that is due longest has been due, and whether that is known.
func (b *Backlog) Age() (age time.Duration, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.age, !b.known.IsZero() && !b.stale()
}

// check returns the error of a write that is refused.
func (b *Backlog) check() error {
	if b == nil || b.cfg.Policy != BacklogRefuse {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over || b.stale() {
		return nil
	}
	return fmt.Errorf("%w: records for sink %s have been due for %v, the limit is %v", ErrBacklog, b.cfg.Sink, b.age.Round(time.Millisecond), b.cfg.Limit)
}
