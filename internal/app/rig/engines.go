package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/remoting"
)

// Options make Engines.
type Options struct {
	// Config is what the services are configured by, but for the names and addresses of what belongs to a run. Its
	// database driver and its name servers say which engines are used.
	Config configs.Config
	// Command starts the child, which calls Serve; the strategy's name and the path of its records are appended.
	Command []string
	// Dir is an empty folder for the run's files. The caller removes it.
	Dir string
	// Name is what the report calls the engines.
	Name string
}

// Engines make sites. It is safe for concurrent use.
type Engines struct {
	Options
	run   string       // in the name of everything that is made
	sites atomic.Int64 // made so far
}

var _ compare.Engines = (*Engines)(nil)

// Prefix begins the name of every schema, topic and group that is made.
const Prefix = "halfbox_compare_"

// New returns Engines. Nothing is made yet.
func New(o Options) *Engines {
	return &Engines{Options: o, run: Prefix + strings.ReplaceAll(uuid.NewString(), "-", "")[:8]}
}

// Run begins the names of what this run makes.
func (e *Engines) Run() string { return e.run }

// Name is what the report calls the engines.
func (e *Engines) Name() string { return e.Options.Name }

// MySQL tells whether the databases are MySQL.
func (e *Engines) MySQL() bool { return e.Config.Database.Driver == "mysql" }

// Lacks is why a fault cannot be made.
func (e *Engines) Lacks(f compare.Fault) string {
	switch {
	case f != compare.FaultDBRestart:
		return ""
	case !e.MySQL():
		return "SQLite has no server: it runs inside the service's process, see kill"
	case e.Config.Database.TLS == "verify-identity":
		return "with database.tls verify-identity no proxy can stand between service and server"
	}
	return ""
}

// heartbeat is how seldom RocketMQ's client makes itself known: a producer whose connection broke can be asked again after
// it at the latest.
const heartbeat = 30 * time.Second

// InDoubt is the time until the broker has asked about a half message: until it knows the producer again, the message is
// old enough, and once more for a check that came too early.
func (e *Engines) InDoubt() time.Duration {
	timeout, interval := e.Config.Broker.TransactionTimeout, e.Config.Broker.CheckInterval
	if p := e.brokerProperties(context.Background()); p != nil {
		timeout, interval = milliseconds(p["transactionTimeOut"], 6*time.Second), milliseconds(p["transactionCheckInterval"], 30*time.Second)
	}
	return max(timeout, e.Config.Checkback.Grace, heartbeat) + 2*interval
}

func milliseconds(text string, otherwise time.Duration) time.Duration {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return otherwise
	}
	return time.Duration(n) * time.Millisecond
}

// brokerProperties are the settings of the cluster's first broker; nil when there is none to ask.
func (e *Engines) brokerProperties(ctx context.Context) map[string]string {
	if e.Config.RocketMQ.Embedded() {
		return nil
	}
	brokers, err := remoting.Masters(ctx, e.nameServer(), e.credentials())
	if err != nil || len(brokers) == 0 {
		return nil
	}
	a, err := remoting.Ask(ctx, brokers[0], remoting.CodeBrokerConfig, nil, e.credentials())
	if err != nil || a.Code != remoting.CodeOK {
		return nil
	}
	p := map[string]string{}
	for line := range strings.Lines(string(a.Body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			p[name] = value
		}
	}
	return p
}

// brokerVersion is what the cluster's first broker says it is.
func (e *Engines) brokerVersion(ctx context.Context) string {
	const codeRuntimeInfo = 28
	brokers, err := remoting.Masters(ctx, e.nameServer(), e.credentials())
	if err != nil || len(brokers) == 0 {
		return "of an unknown version"
	}
	a, err := remoting.Ask(ctx, brokers[0], codeRuntimeInfo, nil, e.credentials())
	m := regexp.MustCompile(`"brokerVersionDesc":"V?([^"]+)"`).FindSubmatch(a.Body)
	if err != nil || m == nil {
		return "of an unknown version"
	}
	return strings.ReplaceAll(string(m[1]), "_", ".")
}

func (e *Engines) nameServer() string {
	return strings.TrimPrefix(e.Config.RocketMQ.NameServers[0], "http://")
}

func (e *Engines) credentials() remoting.Credentials {
	return remoting.Credentials{AccessKey: e.Config.RocketMQ.AccessKey, SecretKey: string(e.Config.RocketMQ.SecretKey)}
}

// Conditions describe the machine, the engines and what of their settings matters.
func (e *Engines) Conditions(ctx context.Context) []compare.Condition {
	host := fmt.Sprintf("%s/%s, %d CPUs%s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), processor(), runtime.Version())
	c := []compare.Condition{{Name: "machine", Value: host}, {Name: "database", Value: e.describeDatabase(ctx)}, {Name: "broker", Value: e.describeBroker(ctx)}}
	return append(c,
		compare.Condition{Name: "service", Value: fmt.Sprintf("one process with every role; outbox.batch %d, outbox.lease %v, outbox.reclaim_interval %v, txmsg.half_timeout %v, txmsg.fallback %s",
			e.Config.Outbox.Batch, e.Config.Outbox.Lease, e.Config.Outbox.ReclaimInterval, e.Config.Txmsg.HalfTimeout, e.Config.Txmsg.Fallback)},
		compare.Condition{Name: "path", Value: "callers, proxies and the embedded broker run in the measuring process; service and broker talk through a TCP proxy, which counts"},
	)
}

// processor is the CPU's name where the system tells it.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return " (" + strings.TrimSpace(value) + ")"
		}
	}
	return ""
}

func (e *Engines) describeBroker(ctx context.Context) string {
	if e.Config.RocketMQ.Embedded() {
		return fmt.Sprintf("halfbox's own, durable, in the measuring process; transaction_timeout %v, check_interval %v",
			e.Config.Broker.TransactionTimeout, e.Config.Broker.CheckInterval)
	}
	p := e.brokerProperties(ctx)
	if p == nil {
		return "RocketMQ at " + strings.Join(e.Config.RocketMQ.NameServers, ", ")
	}
	return fmt.Sprintf("RocketMQ %s, flushDiskType %s, transactionTimeOut %v, transactionCheckInterval %v", e.brokerVersion(ctx), p["flushDiskType"],
		milliseconds(p["transactionTimeOut"], 6*time.Second), milliseconds(p["transactionCheckInterval"], 30*time.Second))
}

// names are the topics and groups of a site, each in place of a configured one.
type names struct{ topics, groups []string }

// rename gives cfg names of its own for every topic and every group that the configuration names, whichever there are.
func rename(cfg *configs.Config, own string) (n names) {
	walk(reflect.ValueOf(cfg).Elem(), func(key string, field reflect.Value) {
		name := own + "_" + key
		switch {
		case strings.HasSuffix(key, "topic"):
			n.topics = append(n.topics, name)
		case strings.HasSuffix(key, "group"):
			n.groups = append(n.groups, name)
		default:
			return
		}
		field.SetString(name)
	})
	return n
}

// walk visits every string of the configuration by its key.
func walk(v reflect.Value, visit func(key string, field reflect.Value)) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct:
			walk(f, visit)
		case reflect.String:
			visit(v.Type().Field(i).Tag.Get("yaml"), f)
		}
	}
}

// siteConfig is the configuration of one site's service, without its databases and its broker.
func (e *Engines) siteConfig(s compare.Strategy, own, dir string) (cfg configs.Config, n names, err error) {
	cfg = e.Config
	cfg.RocketMQ.NameServers = slices.Clone(cfg.RocketMQ.NameServers)
	var environ []string
	for name, value := range s.Settings {
		environ = append(environ, name+"="+value)
	}
	if err := cfg.Override(environ); err != nil {
		return cfg, n, fmt.Errorf("settings of %s: %w", s.Name, err)
	}
	n = rename(&cfg, own)
	cfg.Data = dir
	cfg.HTTP.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Database.Migrate = "always"
	cfg.RocketMQ.CreateTopics = true
	return cfg, n, nil
}

// Open makes a site.
func (e *Engines) Open(ctx context.Context, s compare.Strategy, f compare.Fault) (_ compare.Site, err error) {
	short := strconv.FormatInt(e.sites.Add(1), 10)
	own := e.run + "_" + short
	dir := filepath.Join(e.Dir, short)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	site := &site{engines: e, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, site.Close(context.WithoutCancel(ctx)))
		}
	}()
	var n names
	if site.cfg, n, err = e.siteConfig(s, own, dir); err != nil {
		return nil, err
	}
	if err := site.openBroker(ctx, n); err != nil {
		return nil, err
	}
	if err := site.openDatabases(ctx, own, f == compare.FaultDBRestart); err != nil {
		return nil, err
	}
	site.command = slices.Concat(e.Command, []string{s.Name, site.Records()})
	if site.process, err = start(ctx, site.command, site.cfg, site.logPath()); err != nil {
		return nil, err
	}
	// A restart comes back at the same address.
	_, port, err := net.SplitHostPort(strings.TrimPrefix(site.process.url, "http://"))
	if err != nil {
		return nil, err
	}
	site.cfg.HTTP.Listen = net.JoinHostPort("127.0.0.1", port)
	return site, site.look()
}
