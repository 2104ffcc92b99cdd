package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
)

func TestMain(m *testing.M) { rocketmqtest.Main(m) }

const (
	wait = time.Minute
	tick = 5 * time.Millisecond
)

// config is the default configuration on a folder and ports of its own. A pause of the machine decides nothing: it sends
// no order another way, and ends no transaction.
func config(t testing.TB, dir string) configs.Config {
	t.Helper()
	c, err := configs.Load("", nil)
	require.NoError(t, err)
	c.Data = dir
	c.HTTP.Listen, c.Admin.Listen, c.Broker.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.Txmsg.HalfTimeout, c.Txmsg.LocalTimeout = 15*time.Second, 15*time.Second
	c.Broker.TransactionTimeout, c.Checkback.Grace = 20*time.Second, 20*time.Second
	return c
}

func start(t testing.TB, c configs.Config, roles ...app.Role) *app.App {
	t.Helper()
	a, err := app.New(app.Options{Config: c, Roles: roles, Logger: zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		require.NoError(t, a.Stop(ctx))
	})
	require.NoError(t, a.Start())
	ready, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, a.AwaitReady(ready))
	return a
}

func post(t testing.TB, a *app.App, body string) map[string]any {
	t.Helper()
	res, err := http.Post("http://"+a.Addresses().HTTP+"/api/v1/orders", "application/json", bytes.NewBufferString(body))
	require.NoError(t, err)
	defer res.Body.Close()
	var out map[string]any
	require.NoError(t, json.NewDecoder(res.Body).Decode(&out))
	require.Equal(t, http.StatusCreated, res.StatusCode, "%v", out)
	return out
}

func balance(t testing.TB, a *app.App, user int) float64 {
	t.Helper()
	res, err := http.Get(fmt.Sprintf("http://%s/api/v1/users/%d/points", a.Addresses().HTTP, user))
	require.NoError(t, err)
	defer res.Body.Close()
	var out struct{ Balance float64 }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&out))
	return out.Balance
}

func TestAnOrderEarnsPoints(t *testing.T) {
	t.Parallel()
	a := start(t, config(t, t.TempDir()))
	o := post(t, a, `{"user_id":7,"amount_cents":9990}`)
	require.Equal(t, "txmsg", o["delivery"])
	require.Equal(t, "PENDING", o["points_state"])
	require.Eventually(t, func() bool { return balance(t, a, 7) == 99 }, wait, tick)
}

// The application is a value: two run in one process and know nothing of each other.
func TestTwoInOneProcess(t *testing.T) {
	t.Parallel()
	a, b := start(t, config(t, t.TempDir())), start(t, config(t, t.TempDir()))
	post(t, a, `{"user_id":1,"amount_cents":100}`)
	post(t, b, `{"user_id":1,"amount_cents":300}`)
	require.Eventually(t, func() bool { return balance(t, a, 1) == 1 && balance(t, b, 1) == 3 }, wait, tick)
}

func TestSetupErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	running := start(t, config(t, dir))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, tc := range map[string]struct {
		change func(*configs.Config)
		want   []string
	}{
		"storage held":   {func(c *configs.Config) { c.Data = dir }, []string{dir, "in use", "--data"}},
		"folder":         {func(c *configs.Config) { c.Data = filepath.Join(file, "x") }, []string{"cannot be written", "--data"}},
		"http in use":    {func(c *configs.Config) { c.HTTP.Listen = running.Addresses().HTTP }, []string{running.Addresses().HTTP, "in use", "--http"}},
		"admin in use":   {func(c *configs.Config) { c.Admin.Listen = running.Addresses().Admin }, []string{running.Addresses().Admin, "in use", "--admin"}},
		"broker in use":  {func(c *configs.Config) { c.Broker.Listen = running.Addresses().Broker }, []string{running.Addresses().Broker, "HALFBOX_BROKER_LISTEN"}},
		"open operator":  {func(c *configs.Config) { c.Admin.Listen = "0.0.0.0:0" }, []string{"token"}},
		"no mysql here":  {func(c *configs.Config) { c.Database.Driver = "mysql" }, []string{"order_dsn"}},
		"host not known": {func(c *configs.Config) { c.HTTP.Listen = "no.such.host.invalid:80" }, []string{"--http"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t, t.TempDir())
			tc.change(&c)
			_, err := app.New(app.Options{Config: c})
			require.Error(t, err)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	post(t, running, `{"user_id":2,"amount_cents":100}`) // none of it disturbed the one that runs
	require.Eventually(t, func() bool { return balance(t, running, 2) == 1 }, wait, tick)
}

// What was opened before a failure is closed again: the same folder works at once.
func TestFailedSetupLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	c := config(t, t.TempDir())
	good := c.Admin.Listen
	c.Admin.Listen = "256.0.0.1:1"
	_, err := app.New(app.Options{Config: c})
	require.Error(t, err)
	c.Admin.Listen = good
	start(t, c)
}

func TestStopBeforeStart(t *testing.T) {
	t.Parallel()
	a, err := app.New(app.Options{Config: config(t, t.TempDir())})
	require.NoError(t, err)
	require.NoError(t, a.Stop(t.Context()))
	require.NoError(t, a.Stop(t.Context()))
}

// Each role in an application of its own, on one broker and the same files.
func TestRolesApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, err := broker.Open(broker.Config{Dir: filepath.Join(dir, "broker"), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Stop(context.Background())) })
	require.NoError(t, b.Start())
	c := config(t, dir)
	c.RocketMQ.NameServers = []string{b.Addr()}
	api := start(t, c, app.RoleAPI)
	start(t, c, app.RolePoints)
	start(t, c, app.RoleRelay)
	post(t, api, `{"user_id":3,"amount_cents":500}`)
	post(t, api, `{"user_id":3,"amount_cents":200,"delivery":"outbox"}`)
	require.Eventually(t, func() bool { return balance(t, api, 3) == 7 }, wait, tick)
}
