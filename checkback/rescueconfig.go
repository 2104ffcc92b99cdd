package checkback

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/progress"
	"github.com/halfbox/halfbox/internal/remoting"
)

//go:embed migrations
var migrations embed.FS

// Migrations is this package's line of migrations: t_progress and t_dead_letter, in the database of the transactions.
func Migrations() database.Line { return database.Line{Name: "checkback", Files: migrations} }

// DiscardedTopic is where a broker puts half messages that it has given up on.
const DiscardedTopic = "TRANS_CHECK_MAX_TIME_TOPIC"

// DeadLetterConsumer is the consumer of the rescue's rows in t_dead_letter.
const DeadLetterConsumer = "rescue"

// Errors of a RecordWriter. Both leave the transaction usable.
var (
	// ErrRecorded means that this very message is recorded already: nothing is left to do.
	ErrRecorded = errors.New("checkback: already recorded")
	// ErrUnrecordable means that the event can never be recorded, for example because its fact is under another message
	// id: that one has committed, so this one would be lost if it counted as recorded.
	ErrUnrecordable = errors.New("checkback: cannot be recorded")
)

// RecordWriter records an event for delivery inside a transaction of the rescue, under the attempt that committed.
type RecordWriter interface {
	WriteTx(tx *gorm.DB, ev halfbox.Event, at halfbox.Attempt) error
}

// RescueConfig makes a Rescuer.
type RescueConfig struct {
	// DB is the database of the local transactions, with t_progress and t_dead_letter.
	DB *database.DB
	// Checker decides, with no grace.
	Checker *Checker
	// Records takes the events of transactions that committed.
	Records RecordWriter
	// Nudge is called after a record was committed and must not block. Optional.
	Nudge func()
	// NameServers are RocketMQ name server addresses, host:port.
	NameServers []string
	// AccessKey and SecretKey are the cluster's ACL credentials; empty when it asks for none.
	AccessKey, SecretKey string
	// Group is the transaction producer group whose half messages are rescued; others are passed over.
	Group string
	// PullGroup is the consumer group that the broker sees. Defaults to TOOLS_CONSUMER, which every broker has.
	PullGroup string
	// Poll is the time between two looks. Defaults to 10 s.
	Poll time.Duration
	// Lease is how long one rescuer keeps the others out, by the database's clock; it is renewed with every half
	// message. Defaults to 1 min, and must be well above the Checker's deadline.
	Lease time.Duration
	// Batch is the number of half messages read at once. Defaults to 32.
	Batch int
	// Logger defaults to a no-op, Registerer to none.
	Logger     *zap.Logger
	Registerer prometheus.Registerer
	// Hooks are crash points for tests.
	Hooks RescueHooks
}

// RescueHooks are called at the named points when they are set.
type RescueHooks struct {
	// BeforeAdvance is called inside the transaction, when the record is inserted and the position is not moved yet.
	BeforeAdvance func()
}

func (c RescueConfig) withDefaults() RescueConfig {
	if c.PullGroup == "" {
		c.PullGroup = remoting.ToolsGroup
	}
	if c.Poll == 0 {
		c.Poll = 10 * time.Second
	}
	if c.Lease == 0 {
		c.Lease = time.Minute
	}
	if c.Batch == 0 {
		c.Batch = 32
	}
	if c.Nudge == nil {
		c.Nudge = func() {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Hooks.BeforeAdvance == nil {
		c.Hooks.BeforeAdvance = func() {}
	}
	return c
}

func (c RescueConfig) validate() error {
	switch {
	case c.DB == nil, c.Checker == nil, c.Records == nil:
		return errors.New("checkback: RescueConfig needs DB, Checker and Records")
	case len(c.NameServers) == 0:
		return errors.New("checkback: RescueConfig.NameServers is empty")
	case c.Group == "":
		return errors.New("checkback: RescueConfig.Group is missing")
	case len(progressName(c.Group, remoting.Queue{})) > progress.MaxName/2:
		return fmt.Errorf("checkback: RescueConfig.Group %q is too long", c.Group)
	case c.Poll < 0, c.Lease < 0, c.Batch < 0:
		return errors.New("checkback: RescueConfig: durations and Batch must be positive")
	}
	return nil
}

// progressName is the name of a queue's position in t_progress.
func progressName(group string, q remoting.Queue) string {
	return fmt.Sprintf("rescue/%s/%s/%d", group, q.Broker, q.ID)
}

// newOwner is the claim_owner of one Rescuer.
func newOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	// The column takes ASCII.
	host = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7F {
			return r
		}
		return '?'
	}, host), "?")
	return fmt.Sprintf("%.64s-%d-%s", host, os.Getpid(), uuid.NewString())
}

// rescueMetrics count what became of discarded half messages.
type rescueMetrics struct {
	halves  *prometheus.CounterVec
	errors  prometheus.Counter
	trimmed prometheus.Counter
	held    prometheus.Gauge
	behind  prometheus.Gauge
}

// The outcomes of a discarded half message, a label of the metric.
const (
	rescuedRepublished = "republished"
	rescuedRecorded    = "recorded"
	rescuedRolledBack  = "rolled_back"
	rescuedDeadLetter  = "dead_letter"
	rescuedForeign     = "foreign"
)

func newRescueMetrics(reg prometheus.Registerer) (*rescueMetrics, error) {
	m := &rescueMetrics{
		halves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "halfbox_rescue_halves_total",
			Help: "Half messages that the broker had given up on, by what became of them. dead_letter calls for an operator.",
		}, []string{"outcome"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "halfbox_rescue_errors_total", Help: "Rounds of the rescue that failed; each is tried again.",
		}),
		trimmed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "halfbox_rescue_trimmed_total",
			Help: "Half messages given up on that the broker deleted before they were looked at. Calls for an operator.",
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "halfbox_rescue_held", Help: "Queues whose next half message cannot be decided yet; the later ones wait.",
		}),
		behind: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "halfbox_rescue_behind", Help: "Half messages given up on that were not looked at yet, other groups' included.",
		}),
	}
	for _, outcome := range []string{rescuedRepublished, rescuedRecorded, rescuedRolledBack, rescuedDeadLetter, rescuedForeign} {
		m.halves.WithLabelValues(outcome)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.halves, m.errors, m.trimmed, m.held, m.behind} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("checkback: %w", err)
		}
	}
	return m, nil
}
