package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/halfbox/halfbox/configs"
)

// The variables that scripts/engines sets.
const (
	envMySQL    = "HALFBOX_TEST_MYSQL_DSN"
	envRocketMQ = "HALFBOX_TEST_ROCKETMQ"
)

// realConfig is where --engines real looks for the engines unless --config names another file.
const realConfig = "configs/real.yaml"

// The outbox's times under a comparison. A relay that is killed leaves its records to their lease, 10 minutes by
// default: nobody wants to wait for it here, and the report states it.
const (
	compareLease   = 15 * time.Second
	compareReclaim = 2 * time.Second
)

// loadEngines returns the configuration of the services that are compared.
func (f compareFlags) loadEngines(o *options) (cfg configs.Config, err error) {
	switch f.engines {
	case "embedded":
		cfg, err = o.load()
		cfg.Database.Driver, cfg.RocketMQ.NameServers = "sqlite", nil
	case "real":
		cfg, err = f.loadReal(o)
	default:
		cfg, err = configs.Load(f.engines, o.env.Environ)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("--engines %q: write embedded, real, or the path of a configuration file: %w", f.engines, err)
		}
	}
	if err != nil {
		return cfg, err
	}
	cfg.Outbox.Lease, cfg.Outbox.ReclaimInterval = compareLease, compareReclaim
	cfg.Outbox.Claim = "auto" // the strategies choose
	cfg.Outbox.SendTimeout = min(cfg.Outbox.SendTimeout, compareLease/3)
	return cfg, cfg.Validate()
}

// loadReal takes the engines of scripts/engines when its variables are there, else those of the configuration.
func (f compareFlags) loadReal(o *options) (cfg configs.Config, err error) {
	const remedy = `start some with eval "$(scripts/engines up)", or name yours: --config FILE, or HALFBOX_DATABASE_ORDER_DSN, HALFBOX_DATABASE_POINTS_DSN and HALFBOX_ROCKETMQ_NAME_SERVERS`
	dsn, servers := o.getenv(envMySQL), o.getenv(envRocketMQ)
	if (dsn == "") != (servers == "") {
		return cfg, fmt.Errorf("--engines real: of %s and %s only one is set: %s", envMySQL, envRocketMQ, remedy)
	}
	path := o.config
	if path == "" && dsn == "" {
		if _, err := os.Stat(realConfig); err == nil {
			path = realConfig
		}
	}
	if cfg, err = configs.Load(path, o.env.Environ); err != nil {
		return cfg, err
	}
	if dsn != "" && o.config == "" {
		cfg.Database.Driver = "mysql"
		cfg.Database.OrderDSN, cfg.Database.PointsDSN = configs.Secret(dsn), configs.Secret(dsn)
		cfg.RocketMQ.NameServers = strings.Split(servers, ",")
	}
	if cfg.Database.OrderDSN != "" && o.getenv("HALFBOX_DATABASE_DRIVER") == "" {
		cfg.Database.Driver = "mysql"
	}
	if cfg.Database.Driver != "mysql" || cfg.RocketMQ.Embedded() {
		return cfg, errors.New("--engines real: no MySQL or no RocketMQ is configured: " + remedy)
	}
	return cfg, nil
}
