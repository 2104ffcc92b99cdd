package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// upTimeout bounds one call of scripts/engines, whose first one downloads the engines.
const upTimeout = 10 * time.Minute

// owned is a run folder of scripts/engines that belongs to one test.
type owned struct {
	t      testing.TB
	engine string // as scripts/engines calls it
	script string
	dir    string
	env    []string
}

// newOwned prepares an engine for one test. Its servers end with the test, also when the test's process is killed.
func newOwned(t testing.TB, engine, env string) *owned {
	t.Helper()
	if os.Getenv(env) == "" && !Required() {
		t.Skipf("a %s of this test's own: neither %s nor %s=real is set, so no real engines are wanted", engine, env, EnvEngines)
	}
	root, err := moduleRoot()
	require.NoError(t, err)
	// Not the test's own folder: what ends the servers after a crash removes it.
	dir, err := os.MkdirTemp("", "halfbox-own-")
	require.NoError(t, err)
	o := &owned{t: t, engine: engine, script: filepath.Join(root, "scripts", "engines"), dir: filepath.Join(dir, "run")}
	o.env = append(os.Environ(), "HALFBOX_ENGINES_RUN="+o.dir)
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := o.run("logs", engine); err == nil {
				t.Logf("logs of the test's own %s:\n%s", engine, text)
			}
		}
		_, err := o.run("down", "--purge")
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(dir))
	})
	return o
}

// run calls scripts/engines and returns its standard output.
func (o *owned) run(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), upTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.script, args...)
	cmd.Env = o.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("scripts/engines %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// up starts what does not run, at the ports it had before, and returns the address that the script exports.
func (o *owned) up() string {
	o.t.Helper()
	out, err := o.run("up", "--any-port", "--until-exit", strconv.Itoa(os.Getpid()), o.engine)
	require.NoError(o.t, err)
	_, value, ok := strings.Cut(strings.TrimSpace(out), "=")
	require.True(o.t, ok, "scripts/engines printed %q", out)
	return strings.Trim(value, "'")
}

// port is the one that the script chose for a server.
func (o *owned) port(name string) string {
	o.t.Helper()
	text, err := os.ReadFile(filepath.Join(o.dir, name+".port"))
	require.NoError(o.t, err)
	return strings.TrimSpace(string(text))
}

// OwnedMySQL is a MySQL server of one test.
type OwnedMySQL struct {
	*Process
	own *owned
	dsn string
}

// OwnMySQL starts a MySQL server that the test may stop, kill and freeze. It takes about 8 s; the test is skipped
// where no real engines are wanted.
func OwnMySQL(t testing.TB) *OwnedMySQL {
	t.Helper()
	own := newOwned(t, "mysql", EnvMySQL)
	return &OwnedMySQL{own: own, Process: &Process{own: own, name: "mysql"}, dsn: own.up()}
}

// NewSchema makes an empty schema and returns its DSN. The server must be up.
func (m *OwnedMySQL) NewSchema() string {
	t := m.own.t
	t.Helper()
	cfg, err := mysql.ParseDSN(m.dsn)
	require.NoError(t, err)
	cfg.DBName = Name(t, "test")
	require.NoError(t, execAdmin(cfg, "CREATE DATABASE "+cfg.DBName))
	return cfg.FormatDSN()
}

// OwnedRocketMQ is a name server and a broker of one test. Stop, Start, Kill, Pause and Resume are for both.
type OwnedRocketMQ struct {
	NameServer *Process
	Broker     *Process
	own        *owned
	addr       string
}

// OwnRocketMQ starts a name server and a broker that the test may stop, kill and freeze. It takes about 15 s; the test
// is skipped where no real engines are wanted. Lines like "transactionCheckMax=2" are added to broker.conf.
func OwnRocketMQ(t testing.TB, brokerConf ...string) *OwnedRocketMQ {
	t.Helper()
	own := newOwned(t, "rocketmq", EnvRocketMQ)
	if len(brokerConf) > 0 {
		file := filepath.Join(filepath.Dir(own.dir), "broker.conf")
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(brokerConf, "\n")+"\n"), 0o600))
		own.env = append(own.env, "HALFBOX_ENGINES_BROKER_CONF="+file)
	}
	return &OwnedRocketMQ{
		own: own, addr: own.up(),
		NameServer: &Process{own: own, name: "namesrv"}, Broker: &Process{own: own, name: "broker"},
	}
}

// OwnRocketMQWithUser is like OwnRocketMQ with access control at the broker: who is not this user is refused.
func OwnRocketMQWithUser(t testing.TB, accessKey, secretKey string) *OwnedRocketMQ {
	t.Helper()
	own := newOwned(t, "rocketmq", EnvRocketMQ)
	own.env = append(own.env, "HALFBOX_ENGINES_ACCESS_KEY="+accessKey, "HALFBOX_ENGINES_SECRET_KEY="+secretKey)
	return &OwnedRocketMQ{
		own: own, addr: own.up(),
		NameServer: &Process{own: own, name: "namesrv"}, Broker: &Process{own: own, name: "broker"},
	}
}

// NameServers are the addresses for clients.
func (r *OwnedRocketMQ) NameServers() []string { return []string{r.addr} }

// BrokerAddr is the broker's own address.
func (r *OwnedRocketMQ) BrokerAddr() string { return "127.0.0.1:" + r.own.port("broker") }

// Stop ends both in the ordinary way, which takes the broker some seconds.
func (r *OwnedRocketMQ) Stop() {
	r.own.t.Helper()
	r.Broker.Stop() // first, because it takes its leave of the name server
	r.NameServer.Stop()
}

// Kill ends both at once.
func (r *OwnedRocketMQ) Kill() {
	r.own.t.Helper()
	r.Broker.Kill()
	r.NameServer.Kill()
}

// Start starts what does not run and waits until clients find the broker.
func (r *OwnedRocketMQ) Start() {
	r.own.t.Helper()
	r.own.up()
}

// Pause freezes both.
func (r *OwnedRocketMQ) Pause() {
	r.own.t.Helper()
	r.Broker.Pause()
	r.NameServer.Pause()
}

// Resume ends Pause.
func (r *OwnedRocketMQ) Resume() {
	r.own.t.Helper()
	r.NameServer.Resume()
	r.Broker.Resume()
}
