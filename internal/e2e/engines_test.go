package e2e

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
)

// What docs/guarantees.md and the project promise about the time after an engine is back.
const (
	backWithin       = 15 * time.Second // back to normal
	registeredWithin = 30 * time.Second // a producer that a restarted broker does not know yet
	frozenFor        = 10 * time.Second
)

// engines are a MySQL and a RocketMQ of one test, shared by its subtests in turn.
type engines struct {
	mysql    *enginetest.OwnedMySQL
	rocketmq *enginetest.OwnedRocketMQ
}

func ownEngines(t *testing.T) *engines {
	t.Helper()
	return &engines{
		mysql: enginetest.OwnMySQL(t),
		// Half messages that wait for a producer to be known again must not run out of checks meanwhile.
		rocketmq: enginetest.OwnRocketMQ(t, "transactionCheckMax=1000"),
	}
}

// newSite has schemas, topics and groups of its own.
func (e *engines) newSite(t *testing.T) *site {
	t.Helper()
	return newRealSite(t, e.mysql.NewSchema(), e.mysql.NewSchema(), e.rocketmq.NameServers())
}

func (s *site) mysqlAddr(t testing.TB) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(s.dsn["order"])
	require.NoError(t, err)
	return cfg.Addr
}

// loaded is a process under load on a site of its own.
type loaded struct {
	*site
	p *process
	l *load
}

// start begins a load on a process with this environment and waits until it runs well.
func (e *engines) start(t *testing.T, env ...string) *loaded {
	t.Helper()
	s := e.newSite(t)
	p := s.serve(t, env)
	require.NotNil(t, p)
	x := &loaded{site: s, p: p, l: newLoad(t, "key", p.api)}
	require.Eventually(t, func() bool { return x.l.answered(time.Time{}, byTxmsg) >= 20 }, wait, tick, "the load does not begin: %v", x.l)
	return x
}

// finish checks all invariants under the load's answers, with the process stopped in the ordinary way.
func (x *loaded) finish(t *testing.T) {
	t.Helper()
	x.l.requireHonest(t, x.site)
	require.False(t, dead(x.p), "the process has ended")
	require.Zero(t, x.p.stop(t))
}

// never checks a condition for some time.
func never(t *testing.T, d time.Duration, bad func() bool, what string) {
	t.Helper()
	require.Never(t, bad, d, 10*tick, what)
}

// MySQL is away and comes back, under load.
func TestEnginesMySQL(t *testing.T) {
	t.Parallel()
	e := ownEngines(t)

	t.Run("halfbox starts first", func(t *testing.T) { startsFirst(t, e) })
	t.Run("stopped", func(t *testing.T) { mysqlRestarted(t, e, e.mysql.Stop) })
	t.Run("killed", func(t *testing.T) { mysqlRestarted(t, e, e.mysql.Kill) })
	t.Run("frozen", func(t *testing.T) { mysqlFrozen(t, e) })
	t.Run("answer of COMMIT lost", func(t *testing.T) { commitAnswerLost(t, e) })
	t.Run("COMMIT lost", func(t *testing.T) { commitLost(t, e) })
	t.Run("connections cut again and again", func(t *testing.T) { connectionsCut(t, e) })
}

// freeAddr is an address that nothing listens at now.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ownHost+":0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}

// halfbox runs before its engines do: it says what is missing and becomes ready by itself.
func startsFirst(t *testing.T, e *engines) {
	s := e.newSite(t)
	e.mysql.Stop()
	e.rocketmq.Stop()
	api, admin := freeAddr(t), freeAddr(t)
	p, ready := launch(t, s.env, "serve", "--data", s.data, "--http", api, "--admin", admin)
	api, admin = "http://"+api, "http://"+admin
	require.Eventually(t, func() bool {
		res, err := httpClient().Get(admin + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, wait, tick, "the operator's listener does not answer")

	status, missing := checks(t, admin)
	require.Equal(t, http.StatusServiceUnavailable, status)
	for _, part := range []string{"order database", "points database", "txmsg producer", "points consumer"} {
		require.Contains(t, missing[part], "not ready", "%s in %v", part, missing)
	}
	a, err := wish{Key: "early", UserID: 1, Amount: 100}.post(api)
	require.NoError(t, err)
	require.Equal(t, answer{Status: http.StatusServiceUnavailable, Type: "/problems/unavailable"}, a)
	never(t, 3*time.Second, func() bool { return dead(p) }, "it ended because its engines are not there")

	// One engine after the other: each is seen as soon as it is there, and nothing else is.
	databasesUp := reachable(t, s.mysqlAddr(t))
	e.mysql.Start()
	mysqlAt := databasesUp()
	require.Eventually(t, func() bool {
		status, now := checks(t, admin)
		require.Equal(t, http.StatusServiceUnavailable, status, "%v", now)
		return now["order database"] == "ok" && now["points database"] == "ok"
	}, wait, tick, "the databases are not seen")
	t.Logf("MySQL reachable -> tables made and databases ready: %v", since(mysqlAt))
	require.Less(t, time.Since(mysqlAt), backWithin)
	// Orders that go by the outbox can be made already.
	a = wish{Key: "outbox", UserID: 1, Amount: 100, Delivery: "outbox"}.fulfil(t, api)
	require.Equal(t, "outbox", a.Via)
	_, missing = checks(t, admin)
	require.Contains(t, missing["txmsg producer"], "not ready")
	require.Contains(t, missing["points consumer"], "not ready")

	brokerUp := brokerBack(t, e.rocketmq)
	e.rocketmq.Start()
	brokerAt := brokerUp()
	select {
	case ok := <-ready:
		require.True(t, ok)
	case <-time.After(wait):
		_, missing = checks(t, admin)
		t.Fatalf("it does not become ready: %v", missing)
	}
	t.Logf("broker registered -> ready: %v", since(brokerAt))
	// The topics are made first, then the producer connects, and its first heartbeat comes a second later.
	require.Less(t, time.Since(brokerAt), backWithin)
	requireReady(t, admin)
	l := newLoad(t, "key", api)
	require.Eventually(t, func() bool { return l.answered(time.Time{}, byTxmsg) >= 20 }, wait, tick)
	l.end()
	l.clients.Wait()
	l.orders = append(l.orders, placed{wish: wish{Key: "outbox", UserID: 1, Amount: 100, Delivery: "outbox"}, got: a})
	l.requireHonest(t, s)
	require.Zero(t, p.stop(t))
}

func since(at time.Time) time.Duration { return time.Since(at).Round(10 * time.Millisecond) }

func mysqlRestarted(t *testing.T, e *engines, away func()) {
	x := e.start(t)
	away()
	gone := time.Now()
	require.Eventually(t, func() bool { return x.l.problem("/problems/unavailable") > 0 }, wait, tick, "the API notices nothing: %v", x.l)
	status, missing := checks(t, x.p.admin)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, missing["order database"], "not ready")
	require.Contains(t, missing["points database"], "degraded", "orders could be taken without it")
	status, _ = get(t, x.p.admin+"/healthz")
	require.Equal(t, http.StatusOK, status)

	at := reachable(t, x.mysqlAddr(t))
	e.mysql.Start()
	reached := at()
	x.recovered(t, fmt.Sprintf("MySQL was away for %v", reached.Sub(gone).Round(10*time.Millisecond)), reached)
	x.finish(t)
	require.Zero(t, x.l.problem("no answer"), "a process that runs must answer")
}

// recovered waits until the service is back to normal and logs how long that took from the moment of the engine's
// return: the first order, the settling of everything accepted until then, readiness.
func (x *loaded) recovered(t *testing.T, what string, reached time.Time) {
	t.Helper()
	first := x.l.first(t, reached, anyOrder, "no order after the engine was back")
	txmsg := x.l.first(t, reached, byTxmsg, "no order by txmsg after the engine was back")
	settled := x.settledIn(t, reached)
	require.Eventually(t, func() bool { status, _ := checks(t, x.p.admin); return status == http.StatusOK }, wait, tick)
	t.Logf("%s; reachable -> first order %v, first by txmsg %v, everything before settled %v", what,
		first.at.Sub(reached).Round(10*time.Millisecond), txmsg.at.Sub(reached).Round(10*time.Millisecond), settled.Round(10*time.Millisecond))
	require.Less(t, first.at.Sub(reached), backWithin)
	require.Less(t, txmsg.at.Sub(reached), backWithin)
	require.Less(t, settled, backWithin)
}

func mysqlFrozen(t *testing.T, e *engines) {
	x := e.start(t)
	e.mysql.Pause()
	frozen := time.Now()
	never(t, frozenFor, func() bool { return dead(x.p) }, "the process ended")
	require.Zero(t, x.l.answered(frozen.Add(time.Second), anyOrder), "an order without a database: %v", x.l)
	status, missing := checks(t, x.p.admin)
	require.Equal(t, http.StatusServiceUnavailable, status, "%v", missing)
	e.mysql.Resume()
	x.recovered(t, "MySQL was frozen", time.Now())
	x.finish(t)
}
