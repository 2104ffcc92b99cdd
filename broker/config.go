package broker

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Config configures a Broker. The zero value of every field but Dir means its
// default. Open copies it; later changes have no effect.
type Config struct {
	// Dir is the storage folder. It is created when missing and belongs to one
	// process at a time. Required.
	Dir string
	// Listen is the TCP address of both roles, name server and broker. Default
	// "127.0.0.1:9876"; port 0 lets the system pick one, see Broker.Addr.
	Listen string
	// Advertise is the host:port handed out in routes. Default: the listener's
	// address, with 127.0.0.1 for an unspecified host. Clients outside this
	// machine need it set.
	Advertise string
	// BrokerName and ClusterName appear in routes. Default "halfbox".
	BrokerName, ClusterName string

	// TransactionTimeout is the age at which an undecided half message is
	// checked first, counted from its born timestamp. Default 6s.
	TransactionTimeout time.Duration
	// CheckInterval is the time between two checks of one half. Default 30s.
	CheckInterval time.Duration
	// CheckMax is the number of checks after which a half is given up and moved
	// to TRANS_CHECK_MAX_TIME_TOPIC. Default 15.
	CheckMax int

	// DelayLevels are the delays of levels 1, 2, ... Default: RocketMQ's 18,
	// 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h. A higher level
	// than there are is the last one.
	DelayLevels []time.Duration
	// MaxMessageSize bounds body plus properties of one message, and the body of
	// one batch, in bytes. Default 4 MiB.
	MaxMessageSize int
	// DefaultQueues is the number of queues of a topic created automatically.
	// Default 4.
	DefaultQueues int
	// DisableTopicAutoCreate refuses unknown topics instead of creating them.
	DisableTopicAutoCreate bool
	// Retention is the age, by store timestamp, at which a message is deleted
	// whether it was consumed or not. Default 72h as RocketMQ; negative keeps
	// everything. Undecided halves and delayed messages are never deleted by age.
	Retention time.Duration

	// Logger defaults to none.
	Logger *zap.Logger
	// Registerer receives this broker's metrics at Open and loses them at Stop.
	// Default: none.
	Registerer prometheus.Registerer
	// Hooks inject faults in tests.
	Hooks Hooks
}

func defaultDelayLevels() []time.Duration {
	levels := []time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}
	for m := 1; m <= 10; m++ {
		levels = append(levels, time.Duration(m)*time.Minute)
	}
	return append(levels, 20*time.Minute, 30*time.Minute, time.Hour, 2*time.Hour)
}

func (c Config) withDefaults() Config {
	setDefault(&c.Listen, "127.0.0.1:9876")
	setDefault(&c.BrokerName, "halfbox")
	setDefault(&c.ClusterName, "halfbox")
	setDefault(&c.TransactionTimeout, 6*time.Second)
	setDefault(&c.CheckInterval, 30*time.Second)
	setDefault(&c.CheckMax, 15)
	setDefault(&c.MaxMessageSize, 4<<20)
	setDefault(&c.DefaultQueues, 4)
	setDefault(&c.Retention, 72*time.Hour)
	if len(c.DelayLevels) == 0 {
		c.DelayLevels = defaultDelayLevels()
	} else {
		c.DelayLevels = slices.Clone(c.DelayLevels)
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Hooks.Now == nil {
		c.Hooks.Now = time.Now
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// maxQueues bounds the queues of one topic: each costs a few words of memory
// and one entry per route.
const maxQueues = 1024

// maxChecks bounds the former offsets kept with an open half, one per check.
const maxChecks = 10000

// validate is called after withDefaults. It reports every bad field at once.
func (c Config) validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("broker: %s: %s", field, fmt.Sprintf(format, args...)))
	}
	if c.Dir == "" {
		bad("Dir", "is required")
	}
	if err := checkHostPort(c.Listen); err != nil {
		bad("Listen", "%v", err)
	}
	if c.Advertise != "" {
		if err := checkHostPort(c.Advertise); err != nil {
			bad("Advertise", "%v", err)
		}
	}
	if c.TransactionTimeout < 0 {
		bad("TransactionTimeout", "is negative: %s", c.TransactionTimeout)
	}
	if c.CheckInterval < 0 {
		bad("CheckInterval", "is negative: %s", c.CheckInterval)
	}
	if c.CheckMax < 0 || c.CheckMax > maxChecks {
		bad("CheckMax", "%d is not within 1 and %d", c.CheckMax, maxChecks)
	}
	for i, d := range c.DelayLevels {
		if d < 0 {
			bad("DelayLevels", "level %d is negative: %s", i+1, d)
		}
	}
	if c.MaxMessageSize < 0 || c.MaxMessageSize > 64<<20 {
		bad("MaxMessageSize", "%d is not within 1 byte and 64 MiB", c.MaxMessageSize)
	}
	if c.DefaultQueues < 0 || c.DefaultQueues > maxQueues {
		bad("DefaultQueues", "%d is not within 1 and %d", c.DefaultQueues, maxQueues)
	}
	return errors.Join(errs...)
}

func checkHostPort(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port: %w", addr, err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q has no valid port", addr)
	}
	return nil
}
