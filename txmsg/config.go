package txmsg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

// Checker answers the broker's question whether a half message's transaction committed.
type Checker interface {
	Check(ctx context.Context, h checkback.Half) checkback.Answer
}

// Fallback takes over an event whose half message could not be stored. It keeps the contract of PublishInTx.
type Fallback interface {
	PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error)
}

// Config makes a Producer.
type Config struct {
	// DB is the database of the local transactions, see package localtx.
	DB *database.DB
	// NameServers are RocketMQ name server addresses, host:port.
	NameServers []string
	// AccessKey and SecretKey are the cluster's ACL credentials; empty when it asks for none.
	AccessKey, SecretKey string
	// Group is the producer group: one per service and database, transaction producers only. Any producer of the group
	// is asked about any half message of it.
	Group string
	// Topic takes the events that name no destination.
	Topic string
	// MoreTopics are those that events name as their Destination. A topic that is not listed works too, but the
	// producer is ready before the brokers that only that topic has know it.
	MoreTopics []string
	// Checker answers check-backs.
	Checker Checker
	// Fallback takes over when a half message cannot be stored; nil means ErrUnavailable.
	Fallback Fallback
	// HalfTimeout bounds the sending of a half message. Defaults to 1 s.
	HalfTimeout time.Duration
	// LocalTimeout bounds the local transaction up to COMMIT. It must be below the broker's transactionTimeOut, or
	// the broker asks about transactions that are still running. Defaults to 3 s.
	LocalTimeout time.Duration
	// MaxBody is the largest body in bytes. Defaults to 4 MiB less 64 KiB for properties, the broker's limit.
	MaxBody int
	// Breaker tunes the circuit breaker around half messages.
	Breaker BreakerConfig
	// Logger defaults to a no-op, Registerer to none.
	Logger     *zap.Logger
	Registerer prometheus.Registerer
	// Hooks are crash points and signals for tests.
	Hooks Hooks
}

// Hooks are called at the named points when they are set. They may be called concurrently.
type Hooks struct {
	BeforeHalf        func()
	HalfStored        func() // the client says "stored"; the attempt has not been claimed yet
	AfterHalf         func()
	BeforeLocalCommit func()
	AfterLocalCommit  func()
	AfterEnd          func()
}

func call(hook func()) {
	if hook != nil {
		hook()
	}
}

func (c Config) withDefaults() Config {
	if c.HalfTimeout == 0 {
		c.HalfTimeout = time.Second
	}
	if c.LocalTimeout == 0 {
		c.LocalTimeout = 3 * time.Second
	}
	if c.MaxBody == 0 {
		c.MaxBody = 4<<20 - 64<<10
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Registerer == nil {
		c.Registerer = prometheus.NewRegistry()
	}
	c.Breaker = c.Breaker.withDefaults()
	return c
}

func (c Config) validate() error {
	switch {
	case c.DB == nil:
		return errors.New("txmsg: Config.DB is missing")
	case c.Checker == nil:
		return errors.New("txmsg: Config.Checker is missing: without it a lost commit is never repaired")
	case c.Group == "":
		return errors.New("txmsg: Config.Group is missing")
	case c.Topic == "":
		return errors.New("txmsg: Config.Topic is missing")
	case c.MaxBody < 0:
		return errors.New("txmsg: Config.MaxBody must be positive")
	case c.HalfTimeout < 0 || c.LocalTimeout < 0:
		return errors.New("txmsg: timeouts must be positive")
	}
	if _, err := rocketmq.NameServers(c.NameServers); err != nil {
		return fmt.Errorf("txmsg: %w", err)
	}
	if err := rocketmq.CheckGroup(c.Group); err != nil {
		return fmt.Errorf("txmsg: Config.Group: %w", err)
	}
	for _, topic := range c.topics() {
		if err := rocketmq.CheckTopic(topic); err != nil {
			return fmt.Errorf("txmsg: Config.Topic: %w", err)
		}
	}
	return nil
}

// topics are those whose brokers must know the producer before it is ready.
func (c Config) topics() []string { return append([]string{c.Topic}, c.MoreTopics...) }
