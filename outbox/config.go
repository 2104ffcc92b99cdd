package outbox

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/database"
)

// Hooks are crash points and test signals. Each may be nil; they are called by the goroutine of a sink and may block.
type Hooks struct {
	AfterClaim func() // records are SENDING, nothing was sent
	AfterSend  func() // a send has ended, nothing was marked
	AfterMark  func() // records are SUCCESS
}

func (h Hooks) withDefaults() Hooks {
	for _, f := range []*func(){&h.AfterClaim, &h.AfterSend, &h.AfterMark} {
		if *f == nil {
			*f = func() {}
		}
	}
	return h
}

// RelayConfig makes a Relay. Zero values mean the defaults.
type RelayConfig struct {
	// DB holds t_event_record. Give the relay a small pool of its own, so that it cannot starve the API.
	DB *database.DB
	// Sinks are where records go; a record is taken by the sink that has its name.
	Sinks []Sink
	// Ordered are the names of the sinks that get the events of each key in the order of their versions, and what a dead
	// letter does to its key there. Their writers must be ordered too, see WriterConfig.Ordered. None by default.
	Ordered map[string]HeadOfLine
	// Claim defaults to skip-locked on MySQL and conditional-update on SQLite.
	Claim ClaimMode
	// Batch is the largest number of records of one claim. Defaults to 20.
	Batch int
	// BatchMax is what a batch grows to while there is a backlog: it doubles with every claim that comes back full, and
	// is Batch again after one that does not or a batch that fails. Defaults to 500, or Batch if that is more; negative
	// means that batches do not grow. At most 1000.
	BatchMax int
	// BatchBytes bounds the payloads of one claim, which are all held in memory: what is beyond it stays for the next. A
	// single record may have more. Defaults to 32 MiB.
	BatchBytes int
	// Lease is how long a claim lasts unless renewed, by the database's clock. Defaults to 10 min.
	Lease time.Duration
	// SendTimeout bounds one Send. Defaults to 5 s; at most a third of Lease, or the relay is refused.
	SendTimeout time.Duration
	// StatementTimeout bounds one statement. Defaults to the smaller of 5 s and a third of Lease.
	StatementTimeout time.Duration
	// ReclaimInterval is how often expired leases are looked for. Defaults to 60 s.
	ReclaimInterval time.Duration
	// MaxRetries is how many retries follow the first send; the failure after the last is a dead letter.
	// Defaults to 3; negative means none.
	MaxRetries int
	// BackoffBase, times the square of the retry count, is the time until the next retry. Defaults to 5 s.
	BackoffBase time.Duration
	// BackoffCap bounds it. Defaults to 10 min.
	BackoffCap time.Duration
	// Jitter spreads it by this share, up and down, below 1. Defaults to 0.2; negative means none.
	Jitter float64
	// PollMin is the first pause after work, PollMax what it doubles up to while idle. Default to 50 ms and 1 s.
	PollMin, PollMax time.Duration
	// MaxReclaims is the reclaim that makes a record a dead letter. Defaults to 5, at least 3.
	MaxReclaims int
	// TimeoutWindow is how far back the success of another event shows that a timeout is the event's own fault.
	// Defaults to SendTimeout.
	TimeoutWindow time.Duration
	// Breaker tunes the breaker of each sink.
	Breaker BreakerConfig
	// DrainRate is the largest number of events per second and sink that this relay sends of what waited while the sink or
	// the relay itself was away, until that backlog is drained; several relays send as many times that. What becomes due
	// since is sent besides, as it comes. Defaults to 1000.
	DrainRate int
	// Retention is how long a record is kept after it was made and sent; then it is deleted. 0 keeps it for ever. Dead
	// letters are never deleted by age.
	Retention time.Duration
	// RetentionInterval is how often such records are looked for. Defaults to 1 min.
	RetentionInterval time.Duration
	// StatsInterval is how often the backlog is counted for the metrics. Defaults to 15 s.
	StatsInterval time.Duration
	// Instance is the relay's name in claim_owner, at most 64 characters of ASCII. Defaults to the host's name and the process id.
	Instance string
	// Logger defaults to a no-op.
	Logger *zap.Logger
	// Registerer takes the metrics. Optional. Several relays on one registry need a label each, see
	// prometheus.WrapRegistererWith.
	Registerer prometheus.Registerer
	// Hooks are for tests and crash drills.
	Hooks Hooks
}

func (c RelayConfig) withDefaults() RelayConfig {
	if c.DB != nil {
		c.Claim = cmp.Or(c.Claim, defaultClaimMode(c.DB.Dialect))
	}
	c.Batch = cmp.Or(c.Batch, 20)
	c.BatchMax = max(cmp.Or(c.BatchMax, 500), c.Batch)
	c.BatchBytes = cmp.Or(c.BatchBytes, 32<<20)
	c.Lease = cmp.Or(c.Lease, 10*time.Minute)
	c.SendTimeout = cmp.Or(c.SendTimeout, 5*time.Second)
	c.StatementTimeout = cmp.Or(c.StatementTimeout, min(5*time.Second, c.Lease/3))
	c.ReclaimInterval = cmp.Or(c.ReclaimInterval, time.Minute)
	c.MaxRetries = max(cmp.Or(c.MaxRetries, 3), 0)
	c.BackoffBase = cmp.Or(c.BackoffBase, 5*time.Second)
	c.BackoffCap = cmp.Or(c.BackoffCap, 10*time.Minute)
	c.Jitter = max(cmp.Or(c.Jitter, 0.2), 0)
	c.PollMax = cmp.Or(c.PollMax, time.Second)
	c.PollMin = cmp.Or(c.PollMin, min(50*time.Millisecond, c.PollMax))
	c.MaxReclaims = cmp.Or(c.MaxReclaims, 5)
	c.TimeoutWindow = cmp.Or(c.TimeoutWindow, c.SendTimeout)
	c.Breaker.Failures = cmp.Or(c.Breaker.Failures, 1)
	c.Breaker.OpenMax = cmp.Or(c.Breaker.OpenMax, 10*time.Second)
	c.Breaker.OpenMin = cmp.Or(c.Breaker.OpenMin, min(500*time.Millisecond, c.Breaker.OpenMax))
	c.DrainRate = cmp.Or(c.DrainRate, 1000)
	c.RetentionInterval = cmp.Or(c.RetentionInterval, time.Minute)
	c.StatsInterval = cmp.Or(c.StatsInterval, 15*time.Second)
	if c.Instance == "" {
		c.Instance = defaultInstance()
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.Hooks = c.Hooks.withDefaults()
	return c
}

func (c RelayConfig) validate() error {
	if c.DB == nil {
		return errors.New("outbox: RelayConfig.DB is missing")
	}
	if err := c.validateSinks(); err != nil {
		return err
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Lease", c.Lease},
		{"SendTimeout", c.SendTimeout},
		{"StatementTimeout", c.StatementTimeout},
		{"ReclaimInterval", c.ReclaimInterval},
		{"BackoffBase", c.BackoffBase},
		{"BackoffCap", c.BackoffCap},
		{"PollMin", c.PollMin},
		{"PollMax", c.PollMax},
		{"TimeoutWindow", c.TimeoutWindow},
		{"Breaker.OpenMin", c.Breaker.OpenMin},
		{"Breaker.OpenMax", c.Breaker.OpenMax},
		{"RetentionInterval", c.RetentionInterval},
		{"StatsInterval", c.StatsInterval},
	} {
		// The database counts in milliseconds on SQLite; nothing here needs less.
		if d.value < time.Millisecond {
			return fmt.Errorf("outbox: RelayConfig.%s %v is below 1 ms", d.name, d.value)
		}
	}
	switch {
	case c.Retention < 0:
		return fmt.Errorf("outbox: RelayConfig.Retention %v is negative", c.Retention)
	case c.Claim != ClaimSkipLocked && c.Claim != ClaimConditionalUpdate:
		return fmt.Errorf("outbox: RelayConfig.Claim %q is neither %q nor %q", c.Claim, ClaimSkipLocked, ClaimConditionalUpdate)
	case c.Claim == ClaimSkipLocked && c.DB.Dialect != database.MySQL:
		return fmt.Errorf("outbox: RelayConfig.Claim %q needs MySQL", c.Claim)
	case c.SendTimeout > c.Lease/3:
		return fmt.Errorf("outbox: RelayConfig.SendTimeout %v must be far below the lease: at most a third of %v", c.SendTimeout, c.Lease)
	case c.StatementTimeout > c.Lease/2:
		return fmt.Errorf("outbox: RelayConfig.StatementTimeout %v must be below half of the lease %v", c.StatementTimeout, c.Lease)
	case c.Batch < 1 || c.Batch > 1000:
		return fmt.Errorf("outbox: RelayConfig.Batch %d is not between 1 and 1000", c.Batch)
	case c.BatchMax > 1000:
		return fmt.Errorf("outbox: RelayConfig.BatchMax %d is above 1000", c.BatchMax)
	case c.BatchBytes < 0:
		return fmt.Errorf("outbox: RelayConfig.BatchBytes %d is negative", c.BatchBytes)
	case c.Jitter >= 1:
		return fmt.Errorf("outbox: RelayConfig.Jitter %v is not below 1", c.Jitter)
	case c.PollMax < c.PollMin:
		return fmt.Errorf("outbox: RelayConfig.PollMax %v is below PollMin %v", c.PollMax, c.PollMin)
	case c.Breaker.OpenMax < c.Breaker.OpenMin:
		return fmt.Errorf("outbox: RelayConfig.Breaker.OpenMax %v is below OpenMin %v", c.Breaker.OpenMax, c.Breaker.OpenMin)
	case c.MaxReclaims <= aloneAfter:
		return fmt.Errorf("outbox: RelayConfig.MaxReclaims %d is not above %d", c.MaxReclaims, aloneAfter)
	case c.Breaker.Failures < 1 || c.DrainRate < 1:
		return errors.New("outbox: RelayConfig.Breaker.Failures and DrainRate must be positive")
	case len(c.Instance) > maxInstance || !printable(c.Instance):
		return fmt.Errorf("outbox: RelayConfig.Instance %q is not a name of 1 to %d printable ASCII characters", c.Instance, maxInstance)
	}
	return nil
}

func (c RelayConfig) validateSinks() error {
	if len(c.Sinks) == 0 {
		return errors.New("outbox: RelayConfig.Sinks is empty")
	}
	seen := map[string]bool{}
	for i, s := range c.Sinks {
		switch {
		case s == nil:
			return fmt.Errorf("outbox: RelayConfig.Sinks[%d] is nil", i)
		case !validSinkName(s.Name()):
			return fmt.Errorf("outbox: sink name %q is not 1 to %d printable ASCII characters", s.Name(), maxSink)
		case seen[s.Name()]:
			return fmt.Errorf("outbox: two sinks have the name %q", s.Name())
		}
		seen[s.Name()] = true
	}
	for name, policy := range c.Ordered {
		switch {
		case !seen[name]:
			return fmt.Errorf("outbox: RelayConfig.Ordered names %q, which is no sink of this relay", name)
		case policy != HeadOfLineBlock && policy != HeadOfLinePark:
			return fmt.Errorf("outbox: RelayConfig.Ordered[%q] is %q, neither %q nor %q", name, policy, HeadOfLineBlock, HeadOfLinePark)
		}
	}
	return nil
}

// margin is the part of a lease that is not relied on.
func (c RelayConfig) margin() time.Duration { return min(c.Lease/10, 5*time.Second) }

func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}, host)
	pid := fmt.Sprintf("-%d", os.Getpid())
	return host[:min(len(host), maxInstance-len(pid))] + pid
}

func validSinkName(s string) bool { return s != "" && len(s) <= maxSink && printable(s) }

func printable(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}
