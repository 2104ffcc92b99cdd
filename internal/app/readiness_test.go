package app_test

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/enginetest"
)

var lagLine = regexp.MustCompile(`(?m)^halfbox_points_lag\{topic="ORDER_EVENT_TOPIC"\} 0$`)

// readiness asks /readyz.
func readiness(t testing.TB, a *app.App) (status int, checks map[string]string) {
	t.Helper()
	res, err := http.Get("http://" + a.Addresses().Admin + "/readyz")
	require.NoError(t, err)
	defer res.Body.Close()
	var body struct{ Checks map[string]string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&body))
	return res.StatusCode, body.Checks
}

// requireReadiness waits until one answer of /readyz has the status and says of a part what it begins with and, unless
// empty, names. An answer has 2 s only: on a busy machine it may be about that.
func requireReadiness(t testing.TB, a *app.App, status int, part, word, names string) {
	t.Helper()
	var checks map[string]string
	require.Eventually(t, func() bool {
		var got int
		got, checks = readiness(t, a)
		return got == status && strings.HasPrefix(checks[part], word) && strings.Contains(checks[part], names)
	}, wait, tick, "%s is not %d %s%s: %v", part, status, word, names, &checks)
}

// When RocketMQ goes away after the start, a process that takes orders without it stays ready and says so; the others
// do not.
func TestReadinessWithoutRocketMQ(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	with := func(change func(*configs.Config), roles ...app.Role) *app.App {
		c := config(t, t.TempDir())
		c.RocketMQ.NameServers = []string{b.Addr()}
		change(&c)
		return start(t, c, roles...)
	}
	asIs := func(*configs.Config) {}
	noFallback := func(c *configs.Config) { c.Txmsg.Fallback = "off" }
	apps := map[string]struct {
		app    *app.App
		status int
		word   string
	}{
		"all roles":           {with(asIs), http.StatusOK, "degraded: "},
		"api":                 {with(asIs, app.RoleAPI), http.StatusOK, "degraded: "},
		"api without outbox":  {with(noFallback, app.RoleAPI), http.StatusServiceUnavailable, "not ready: "},
		"api outbox at first": {with(func(c *configs.Config) { noFallback(c); c.Order.Delivery = "outbox" }, app.RoleAPI), http.StatusOK, "degraded: "},
		"relay":               {with(asIs, app.RoleRelay), http.StatusServiceUnavailable, "not ready: "},
		"points":              {with(asIs, app.RolePoints), http.StatusServiceUnavailable, "not ready: "},
	}
	for _, tc := range apps {
		requireReadiness(t, tc.app, http.StatusOK, "rocketmq", "ok", "")
	}
	require.NoError(t, b.Stop(t.Context()))
	for name, tc := range apps {
		t.Log(name)
		requireReadiness(t, tc.app, tc.status, "rocketmq", tc.word, b.Addr())
		if tc.app == apps["all roles"].app || tc.app == apps["points"].app {
			requireReadiness(t, tc.app, tc.status, "points consumer", tc.word, "")
		}
	}
	brokertest.Restart(t, b)
	for _, tc := range apps {
		requireReadiness(t, tc.app, http.StatusOK, "rocketmq", "ok", "")
	}
}

// When the points database goes away after the start, a process that takes orders goes on taking them and says so; one
// that books points is not ready.
func TestReadinessWithoutPointsDatabase(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	c := config(t, t.TempDir())
	wire, through := enginetest.MySQLProxy(t, enginetest.MySQL(t))
	c.RocketMQ.NameServers = []string{b.Addr()}
	c.Database.Driver, c.Database.Migrate = "mysql", "always"
	c.Database.OrderDSN, c.Database.PointsDSN = configs.Secret(enginetest.MySQL(t)), configs.Secret(through)
	api, points, all := start(t, c, app.RoleAPI), start(t, c, app.RolePoints), start(t, c)
	for _, a := range []*app.App{api, points, all} {
		requireReadiness(t, a, http.StatusOK, "points database", "ok", "")
	}
	wire.Cut()
	for a, want := range map[*app.App]struct {
		status int
		word   string
	}{api: {http.StatusOK, "degraded: "}, all: {http.StatusOK, "degraded: "}, points: {http.StatusServiceUnavailable, "not ready: "}} {
		requireReadiness(t, a, want.status, "points database", want.word, "")
	}
	require.Equal(t, "CREATED", post(t, api, `{"user_id":1,"amount_cents":100}`)["status"])
	wire.Pass()
	requireReadiness(t, points, http.StatusOK, "points database", "ok", "")
}

// The lag of the points is a metric.
func TestLagMetric(t *testing.T) {
	t.Parallel()
	a := start(t, config(t, t.TempDir()))
	require.Eventually(t, func() bool {
		res, err := http.Get("http://" + a.Addresses().Admin + "/metrics")
		require.NoError(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return lagLine.Match(text)
	}, wait, tick)
}
