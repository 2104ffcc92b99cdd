package configs

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// Config is everything an operator can set. default.yaml documents each key.
type Config struct {
	Data      string    `yaml:"data" env:"DATA"`
	HTTP      HTTP      `yaml:"http" envPrefix:"HTTP_"`
	Admin     Admin     `yaml:"admin" envPrefix:"ADMIN_"`
	Log       Log       `yaml:"log" envPrefix:"LOG_"`
	Database  Database  `yaml:"database" envPrefix:"DATABASE_"`
	RocketMQ  RocketMQ  `yaml:"rocketmq" envPrefix:"ROCKETMQ_"`
	Broker    Broker    `yaml:"broker" envPrefix:"BROKER_"`
	Txmsg     Txmsg     `yaml:"txmsg" envPrefix:"TXMSG_"`
	Checkback Checkback `yaml:"checkback" envPrefix:"CHECKBACK_"`
	Rescue    Rescue    `yaml:"rescue" envPrefix:"RESCUE_"`
	Order     Order     `yaml:"order" envPrefix:"ORDER_"`
	Outbox    Outbox    `yaml:"outbox" envPrefix:"OUTBOX_"`
}

// HTTP is the public API's listener.
type HTTP struct {
	Listen      string `yaml:"listen" env:"LISTEN"`
	MaxInFlight int    `yaml:"max_in_flight" env:"MAX_IN_FLIGHT"`
}

// Admin is the operator's listener.
type Admin struct {
	Listen    string `yaml:"listen" env:"LISTEN"`
	Token     Secret `yaml:"token" env:"TOKEN"`
	TokenFile string `yaml:"token_file" env:"TOKEN_FILE"`
}

// Log says what is logged and how.
type Log struct {
	Level  string `yaml:"level" env:"LEVEL"`
	Format string `yaml:"format" env:"FORMAT"`
}

// Database chooses the databases. A DSN is a secret: it holds a password.
type Database struct {
	Driver        string `yaml:"driver" env:"DRIVER"`
	OrderDSN      Secret `yaml:"order_dsn" env:"ORDER_DSN"`
	OrderDSNFile  string `yaml:"order_dsn_file" env:"ORDER_DSN_FILE"`
	PointsDSN     Secret `yaml:"points_dsn" env:"POINTS_DSN"`
	PointsDSNFile string `yaml:"points_dsn_file" env:"POINTS_DSN_FILE"`
	TLS           string `yaml:"tls" env:"TLS"`
	TLSCAFile     string `yaml:"tls_ca_file" env:"TLS_CA_FILE"`
	Migrate       string `yaml:"migrate" env:"MIGRATE"`
}

// RocketMQ names the cluster, its topics and groups.
type RocketMQ struct {
	NameServers      []string `yaml:"name_servers" env:"NAME_SERVERS"`
	AccessKey        string   `yaml:"access_key" env:"ACCESS_KEY"`
	SecretKey        Secret   `yaml:"secret_key" env:"SECRET_KEY"`
	SecretKeyFile    string   `yaml:"secret_key_file" env:"SECRET_KEY_FILE"`
	OrderTopic       string   `yaml:"order_topic" env:"ORDER_TOPIC"`
	CreateTopics     bool     `yaml:"create_topics" env:"CREATE_TOPICS"`
	TransactionGroup string   `yaml:"transaction_group" env:"TRANSACTION_GROUP"`
	RelayGroup       string   `yaml:"relay_group" env:"RELAY_GROUP"`
	PointsGroup      string   `yaml:"points_group" env:"POINTS_GROUP"`
}

// Embedded tells whether the in-process broker is used.
func (r RocketMQ) Embedded() bool { return len(r.NameServers) == 0 }

// Broker is the in-process broker.
type Broker struct {
	Listen             string        `yaml:"listen" env:"LISTEN"`
	TransactionTimeout time.Duration `yaml:"transaction_timeout" env:"TRANSACTION_TIMEOUT"`
	CheckInterval      time.Duration `yaml:"check_interval" env:"CHECK_INTERVAL"`
	CheckMax           int           `yaml:"check_max" env:"CHECK_MAX"`
}

// Txmsg is the transactional strategy.
type Txmsg struct {
	HalfTimeout  time.Duration `yaml:"half_timeout" env:"HALF_TIMEOUT"`
	LocalTimeout time.Duration `yaml:"local_timeout" env:"LOCAL_TIMEOUT"`
	Fallback     string        `yaml:"fallback" env:"FALLBACK"`
}

// Checkback is how the broker's questions are answered.
type Checkback struct {
	Grace          time.Duration `yaml:"grace" env:"GRACE"`
	Deadline       time.Duration `yaml:"deadline" env:"DEADLINE"`
	TxLogRetention time.Duration `yaml:"tx_log_retention" env:"TX_LOG_RETENTION"`
}

// Rescue is the second look at half messages that the broker has given up on.
type Rescue struct {
	Poll  time.Duration `yaml:"poll" env:"POLL"`
	Lease time.Duration `yaml:"lease" env:"LEASE"`
	Group string        `yaml:"group" env:"GROUP"`
}

// Order is the order domain.
type Order struct {
	Delivery string `yaml:"delivery" env:"DELIVERY"`
}

// Outbox is the outbox strategy and its relay.
type Outbox struct {
	Sink            string        `yaml:"sink" env:"SINK"`
	Batch           int           `yaml:"batch" env:"BATCH"`
	BatchMax        int           `yaml:"batch_max" env:"BATCH_MAX"`
	BatchBytes      int           `yaml:"batch_bytes" env:"BATCH_BYTES"`
	Lease           time.Duration `yaml:"lease" env:"LEASE"`
	Claim           string        `yaml:"claim" env:"CLAIM"`
	SendTimeout     time.Duration `yaml:"send_timeout" env:"SEND_TIMEOUT"`
	MaxRetries      int           `yaml:"max_retries" env:"MAX_RETRIES"`
	Backoff         time.Duration `yaml:"backoff" env:"BACKOFF"`
	BackoffMax      time.Duration `yaml:"backoff_max" env:"BACKOFF_MAX"`
	DrainRate       int           `yaml:"drain_rate" env:"DRAIN_RATE"`
	ReclaimInterval time.Duration `yaml:"reclaim_interval" env:"RECLAIM_INTERVAL"`
	PollMax         time.Duration `yaml:"poll_max" env:"POLL_MAX"`
	Ordered         bool          `yaml:"ordered" env:"ORDERED"`
	HeadOfLine      string        `yaml:"head_of_line" env:"HEAD_OF_LINE"`
	MaxPayload      int           `yaml:"max_payload" env:"MAX_PAYLOAD"`
	Retention       time.Duration `yaml:"retention" env:"RETENTION"`
	BacklogLimit    time.Duration `yaml:"backlog_limit" env:"BACKLOG_LIMIT"`
	BacklogPolicy   string        `yaml:"backlog_policy" env:"BACKLOG_POLICY"`
}

// Validate checks what can be known without an engine. The error names every key that is wrong.
func (c Config) Validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Data == "", "data: name a folder")
	for key, addr := range map[string]string{"http.listen": c.HTTP.Listen, "admin.listen": c.Admin.Listen, "broker.listen": c.Broker.Listen} {
		_, _, err := net.SplitHostPort(addr)
		bad(err != nil, "%s: %q is not host:port", key, addr)
	}
	bad(c.HTTP.MaxInFlight < 1, "http.max_in_flight: must be at least 1")
	bad(!oneOf(c.Log.Level, "debug", "info", "warn", "error"), "log.level: %q is not debug, info, warn or error", c.Log.Level)
	bad(!oneOf(c.Log.Format, "console", "json"), "log.format: %q is not console or json", c.Log.Format)
	bad(!oneOf(c.Database.Driver, "sqlite", "mysql"), "database.driver: %q is not sqlite or mysql", c.Database.Driver)
	bad(!oneOf(c.Database.Migrate, "auto", "always", "never"), "database.migrate: %q is not auto, always or never", c.Database.Migrate)
	bad(!oneOf(c.Database.TLS, "off", "required", "verify-ca", "verify-identity"), "database.tls: %q is not off, required, verify-ca or verify-identity", c.Database.TLS)
	bad(c.Database.TLS == "verify-ca" && c.Database.TLSCAFile == "", "database.tls_ca_file: required with tls verify-ca")
	if c.Database.Driver == "mysql" {
		bad(c.Database.OrderDSN == "", "database.order_dsn: required with driver mysql")
		bad(c.Database.PointsDSN == "", "database.points_dsn: required with driver mysql")
	}
	bad((c.RocketMQ.AccessKey == "") != (c.RocketMQ.SecretKey == ""), "rocketmq.access_key and secret_key: set both or none")
	for key, name := range map[string]string{
		"order_topic": c.RocketMQ.OrderTopic, "transaction_group": c.RocketMQ.TransactionGroup,
		"relay_group": c.RocketMQ.RelayGroup, "points_group": c.RocketMQ.PointsGroup,
	} {
		bad(name == "", "rocketmq.%s: must not be empty", key)
	}
	bad(c.Rescue.Group == "", "rescue.group: must not be empty")
	bad(c.RocketMQ.TransactionGroup == c.RocketMQ.RelayGroup,
		"rocketmq.relay_group: must differ from transaction_group, a plain producer in that group would swallow check-backs")
	bad(!oneOf(c.Order.Delivery, "txmsg", "outbox"), "order.delivery: %q is not txmsg or outbox", c.Order.Delivery)
	bad(!oneOf(c.Txmsg.Fallback, "outbox", "off"), "txmsg.fallback: %q is not outbox or off", c.Txmsg.Fallback)
	bad(!oneOf(c.Outbox.Claim, "auto", "skip-locked", "conditional-update"), "outbox.claim: %q is not auto, skip-locked or conditional-update", c.Outbox.Claim)
	bad(!oneOf(c.Outbox.HeadOfLine, "block", "park"), "outbox.head_of_line: %q is not block or park", c.Outbox.HeadOfLine)
	bad(c.Outbox.Claim == "skip-locked" && c.Database.Driver != "mysql", "outbox.claim: skip-locked needs database.driver mysql")
	bad(c.Outbox.Retention < 0, "outbox.retention: must not be negative, 0 keeps everything")
	bad(!oneOf(c.Outbox.BacklogPolicy, "warn", "refuse"), "outbox.backlog_policy: %q is not warn or refuse", c.Outbox.BacklogPolicy)
	errs = append(errs, c.validateTimes()...)
	return errors.Join(errs...)
}

// minTxLogRetention is above RocketMQ's default for messages, 72 h: a transaction must be known for as long as the
// broker may ask about it.
const minTxLogRetention = 73 * time.Hour

// validateTimes checks the order in which deadlines must follow one another (docs/guarantees.md).
func (c Config) validateTimes() (errs []error) {
	for key, d := range map[string]time.Duration{
		"broker.transaction_timeout": c.Broker.TransactionTimeout, "broker.check_interval": c.Broker.CheckInterval,
		"txmsg.half_timeout": c.Txmsg.HalfTimeout, "txmsg.local_timeout": c.Txmsg.LocalTimeout,
		"checkback.grace": c.Checkback.Grace, "checkback.deadline": c.Checkback.Deadline,
		"rescue.poll": c.Rescue.Poll, "rescue.lease": c.Rescue.Lease,
		"outbox.lease": c.Outbox.Lease, "outbox.send_timeout": c.Outbox.SendTimeout,
		"outbox.reclaim_interval": c.Outbox.ReclaimInterval, "outbox.poll_max": c.Outbox.PollMax, "outbox.backlog_limit": c.Outbox.BacklogLimit,
		"outbox.backoff": c.Outbox.Backoff, "outbox.backoff_max": c.Outbox.BackoffMax,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s: must be positive", key))
		}
	}
	if c.Checkback.TxLogRetention < minTxLogRetention {
		errs = append(errs, fmt.Errorf("checkback.tx_log_retention (%v): must be at least %v, longer than the broker keeps messages",
			c.Checkback.TxLogRetention, minTxLogRetention))
	}
	if c.Broker.CheckMax < 1 {
		errs = append(errs, errors.New("broker.check_max: must be at least 1"))
	}
	for key, n := range map[string]int{"batch": c.Outbox.Batch, "batch_max": c.Outbox.BatchMax, "batch_bytes": c.Outbox.BatchBytes, "max_retries": c.Outbox.MaxRetries, "drain_rate": c.Outbox.DrainRate, "max_payload": c.Outbox.MaxPayload} {
		if n < 1 {
			errs = append(errs, fmt.Errorf("outbox.%s: must be at least 1", key))
		}
	}
	if c.Outbox.SendTimeout > c.Outbox.Lease/3 {
		errs = append(errs, fmt.Errorf("outbox.send_timeout (%v): must be at most a third of outbox.lease (%v)", c.Outbox.SendTimeout, c.Outbox.Lease))
	}
	if c.Rescue.Lease < 3*c.Checkback.Deadline {
		errs = append(errs, fmt.Errorf("rescue.lease (%v): must be at least three times checkback.deadline (%v)", c.Rescue.Lease, c.Checkback.Deadline))
	}
	if !c.RocketMQ.Embedded() {
		return errs // the cluster's own values are not known here
	}
	for _, pair := range []struct {
		low, high         string
		lowTime, highTime time.Duration
		mayBeEqual        bool
	}{
		{"txmsg.local_timeout", "broker.transaction_timeout", c.Txmsg.LocalTimeout, c.Broker.TransactionTimeout, false},
		{"broker.transaction_timeout", "checkback.grace", c.Broker.TransactionTimeout, c.Checkback.Grace, true},
		{"checkback.grace", "broker.check_max x check_interval", c.Checkback.Grace, time.Duration(c.Broker.CheckMax) * c.Broker.CheckInterval, false},
	} {
		if pair.lowTime > pair.highTime || pair.lowTime == pair.highTime && !pair.mayBeEqual {
			errs = append(errs, fmt.Errorf("%s (%v) must be below %s (%v)", pair.low, pair.lowTime, pair.high, pair.highTime))
		}
	}
	return errs
}

func oneOf(s string, of ...string) bool {
	for _, o := range of {
		if s == o {
			return true
		}
	}
	return false
}
