package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/faults"
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

// start begins a load and waits until it runs well.
func (e *engines) start(t *testing.T) *loaded {
	t.Helper()
	s := e.newSite(t)
	p := s.serve(t, nil)
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
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

	brokerUp := reachable(t, e.rocketmq.BrokerAddr())
	e.rocketmq.Start()
	brokerAt := brokerUp()
	select {
	case ok := <-ready:
		require.True(t, ok)
	case <-time.After(wait):
		_, missing = checks(t, admin)
		t.Fatalf("it does not become ready: %v", missing)
	}
	t.Logf("broker reachable -> ready: %v", since(brokerAt))
	// The topics are made first, then the producer connects, and its first heartbeat comes a second later.
	require.Less(t, time.Since(brokerAt), backWithin)
	status, missing = checks(t, admin)
	require.Equal(t, http.StatusOK, status, "%v", missing)
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

// armed is a process that stops itself right before the COMMIT of its first order by txmsg, with its order database
// behind a proxy.
func (e *engines) armed(t *testing.T) (s *site, p *process, wire *enginetest.Proxy) {
	t.Helper()
	s = e.newSite(t)
	wire, through := enginetest.MySQLProxy(t, s.dsn["order"])
	p = s.serve(t, []string{
		"HALFBOX_DATABASE_ORDER_DSN=" + through, faults.AllowVariable + "=1",
		// Time for the test to set its fault, while checks of the half message are answered UNKNOWN.
		"HALFBOX_TXMSG_LOCAL_TIMEOUT=8s", "HALFBOX_CHECKBACK_GRACE=9s",
	}, "--fault", faults.TxmsgBeforeLocalCommit+"=freeze@1")
	require.NotNil(t, p)
	return s, p, wire
}

// outcome is what a client of its own got.
type outcome struct {
	answer
	err error
}

// atCommit asks for an order, sets a fault while the process stands right before COMMIT, and lets it go on.
func atCommit(t *testing.T, p *process, w wish, fault func()) <-chan outcome {
	t.Helper()
	got := make(chan outcome, 1)
	go func() {
		a, err := w.post(p.api)
		got <- outcome{a, err}
	}()
	require.Eventually(t, func() bool { return state(t, p) == 'T' }, wait, tick, "COMMIT is not reached")
	fault()
	p.signal(t, syscall.SIGCONT)
	return got
}

func requireUnknown(t *testing.T, got <-chan outcome) string {
	t.Helper()
	select {
	case o := <-got:
		require.NoError(t, o.err)
		require.Equal(t, http.StatusServiceUnavailable, o.Status)
		require.Equal(t, "/problems/outcome-unknown", o.Type)
		require.NotEmpty(t, o.OrderNo)
		return o.OrderNo
	case <-time.After(wait):
		t.Fatal("no answer")
		return ""
	}
}

// COMMIT is carried out and its answer is lost.
func commitAnswerLost(t *testing.T, e *engines) {
	s, p, wire := e.armed(t)
	w := wish{Key: "lost", UserID: 5, Amount: 12300, Delivery: "txmsg"}
	got := atCommit(t, p, w, func() { wire.Blackhole(enginetest.ToClient) })
	require.Eventually(t, func() bool { return len(s.readBooks(t).orders) == 1 }, wait, tick, "COMMIT does not arrive")
	wire.Cut()
	no := requireUnknown(t, got)
	wire.Pass()
	status, text := get(t, p.api+"/api/v1/orders/"+no)
	require.Equal(t, http.StatusOK, status, text)
	a := w.fulfil(t, p.api)
	require.Equal(t, http.StatusOK, a.Status, "a repetition makes no second order")
	require.Equal(t, no, a.OrderNo)
	b := s.requireWhole(t, p, []wish{w})
	require.Zero(t, b.voids)
	require.Equal(t, "txmsg", b.orders[no].Delivery)
}

// The connection breaks with COMMIT on its way: the server never sees it.
func commitLost(t *testing.T, e *engines) {
	s, p, wire := e.armed(t)
	w := wish{Key: "lost", UserID: 5, Amount: 12300, Delivery: "txmsg"}
	got := atCommit(t, p, w, func() { wire.DropAfter(0, enginetest.ToServer) })
	require.Never(t, func() bool { return len(s.readBooks(t).orders) > 0 }, time.Second, 5*tick, "COMMIT arrived")
	wire.Cut()
	no := requireUnknown(t, got)
	wire.Pass()
	status, text := get(t, p.api+"/api/v1/orders/"+no)
	require.Equal(t, http.StatusNotFound, status, text)
	a := w.fulfil(t, p.api)
	require.Equal(t, http.StatusCreated, a.Status, "there was no order yet")
	require.NotEqual(t, no, a.OrderNo)
	s.requireWhole(t, p, []wish{w})
}

// Connections to MySQL break at any byte of either direction, again and again, while orders of both deliveries are
// made: whatever the answers say is true.
func connectionsCut(t *testing.T, e *engines) {
	const seed, cuts = 20261201, 40
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := e.newSite(t)
	wire, through := enginetest.MySQLProxy(t, s.dsn["order"])
	p := s.serve(t, []string{"HALFBOX_DATABASE_ORDER_DSN=" + through})
	require.NotNil(t, p)
	l := newLoad(t, "key", p.api)
	for range cuts {
		before := time.Now()
		require.Eventually(t, func() bool { return l.answered(before, anyOrder) >= 2 }, wait, tick, "the clients make no progress: %v", l)
		failed := l.failures()
		wire.CutAfter(rnd.Int64N(3000), enginetest.Direction(rnd.IntN(2)))
		require.Eventually(t, func() bool { return l.failures() > failed }, wait, tick, "nobody notices: %v", l)
		wire.Pass()
	}
	t.Logf("seed %d, %d cuts, %d outcomes unknown", seed, cuts, l.problem("/problems/outcome-unknown"))
	require.Positive(t, l.problem("/problems/outcome-unknown"), "no COMMIT was hit: choose another seed")
	l.requireHonest(t, s)
	require.Zero(t, p.stop(t))
}

// RocketMQ is away and comes back, under load.
func TestEnginesRocketMQ(t *testing.T) {
	t.Parallel()
	e := ownEngines(t)

	t.Run("two of each role", func(t *testing.T) { twoOfEach(t, e) })
	t.Run("stopped", func(t *testing.T) { rocketmqRestarted(t, e, e.rocketmq.Stop) })
	t.Run("killed", func(t *testing.T) { rocketmqRestarted(t, e, e.rocketmq.Kill) })
	t.Run("name server gone", func(t *testing.T) { nameServerGone(t, e) })
	t.Run("broker frozen", func(t *testing.T) { brokerFrozen(t, e) })
}

func rocketmqRestarted(t *testing.T, e *engines, away func()) {
	x := e.start(t)
	away()
	gone := time.Now()
	require.Eventually(t, func() bool { return x.l.answered(gone, fellBack) >= 20 }, wait, tick, "orders do not fall back: %v", x.l)
	require.Eventually(t, func() bool {
		status, checked := checks(t, x.p.admin)
		require.Equal(t, http.StatusOK, status, "it takes orders: %v", checked)
		return strings.HasPrefix(checked["rocketmq"], "degraded: ")
	}, wait, tick)
	at := reachable(t, e.rocketmq.BrokerAddr())
	e.rocketmq.Start()
	reached := at()
	x.rocketmqBack(t, fmt.Sprintf("RocketMQ was away for %v", reached.Sub(gone).Round(10*time.Millisecond)), reached)
	x.finish(t)
	require.Zero(t, x.l.problem("no answer"), "a process that runs must answer")
	require.Zero(t, x.l.problem("/problems/unavailable"), "orders go on without RocketMQ")
}

// rocketmqBack waits until orders go by txmsg again and are credited, and until everything before is.
func (x *loaded) rocketmqBack(t *testing.T, what string, reached time.Time) {
	t.Helper()
	txmsg := x.l.first(t, reached, byTxmsg, "no order by txmsg after the broker was back")
	require.Eventually(t, func() bool { return x.credited(t, txmsg.got.OrderNo) }, wait, tick, "the first order by txmsg is not credited")
	credited := time.Since(reached)
	settled := x.settledIn(t, reached)
	t.Logf("%s; reachable -> first order by txmsg %v, credited %v, everything before settled %v", what,
		txmsg.at.Sub(reached).Round(10*time.Millisecond), credited.Round(10*time.Millisecond), settled.Round(10*time.Millisecond))
	require.Less(t, txmsg.at.Sub(reached), backWithin)
	require.Less(t, credited, backWithin)
	// Half messages whose end was lost wait for the heartbeat and for the check after it.
	require.Less(t, settled, registeredWithin+backWithin)
}

// Clients that know their route need no name server.
func nameServerGone(t *testing.T, e *engines) {
	x := e.start(t)
	logged := len(x.p.stderr())
	e.rocketmq.NameServer.Kill()
	gone := time.Now()
	// Until the client has asked it for the route in vain, which it does every 30 s, and for some orders more.
	require.Eventually(t, func() bool { return strings.Contains(x.p.stderr()[logged:], "connect to namesrv") }, wait, 10*tick,
		"the name server is not missed:\n%v", lazy(x.p.stderr))
	missed := time.Now()
	require.Eventually(t, func() bool { return x.l.answered(missed, byTxmsg) >= 20 }, wait, tick, "no orders by txmsg: %v", x.l)
	last := x.l.first(t, missed, byTxmsg, "no order by txmsg")
	require.Eventually(t, func() bool { return x.credited(t, last.got.OrderNo) }, wait, tick, "not credited")
	// On a busy machine a half message may be late; without a route none would be stored.
	require.Less(t, 10*x.l.answered(gone, fellBack), x.l.answered(gone, byTxmsg), "half messages were not stored: %v", x.l)
	t.Logf("the name server was away for %v, %d orders by txmsg meanwhile", since(gone), x.l.answered(gone, byTxmsg))
	e.rocketmq.NameServer.Start()
	back := time.Now()
	require.Eventually(t, func() bool { return x.l.answered(back, byTxmsg) >= 20 }, wait, tick, "no orders by txmsg: %v", x.l)
	x.finish(t)
	require.Zero(t, x.l.problem("no answer"))
	require.Zero(t, x.l.problem("/problems/unavailable"))
}

func brokerFrozen(t *testing.T, e *engines) {
	x := e.start(t)
	e.rocketmq.Broker.Pause()
	frozen := time.Now()
	never(t, frozenFor, func() bool { return dead(x.p) }, "the process ended")
	require.Positive(t, x.l.answered(frozen, fellBack), "orders do not fall back: %v", x.l)
	e.rocketmq.Broker.Resume()
	x.rocketmqBack(t, "the broker was frozen", time.Now())
	x.finish(t)
	require.Zero(t, x.l.problem("/problems/unavailable"), "orders go on without RocketMQ")
}

// Two processes of each role share the work; one of each is killed under load.
func twoOfEach(t *testing.T, e *engines) {
	s := e.newSite(t)
	pair := func(role string) [2]*process {
		return [2]*process{s.serve(t, nil, "--roles", role), s.serve(t, nil, "--roles", role)}
	}
	apis, relays, points := pair("api"), pair("relay"), pair("points")
	l := newLoad(t, "key", apis[0].api, apis[1].api)
	for name, both := range map[string][2]*process{
		"halfbox_txmsg_publish_total": apis, "halfbox_outbox_attempts_total": relays, "halfbox_points_messages_total": points,
	} {
		require.Eventually(t, func() bool { return metric(t, both[0], name) > 0 && metric(t, both[1], name) > 0 }, wait, 10*tick,
			"one of two does nothing: %s", name)
	}
	enough := func(what string) {
		before := time.Now()
		require.Eventually(t, func() bool {
			return l.answered(before, byTxmsg) >= 20 && l.answered(before, func(o placed) bool { return !byTxmsg(o) }) >= 20
		}, wait, tick, "%s: %v", what, l)
	}
	enough("all there")
	points[0].kill()
	enough("one points process killed")
	relays[0].kill()
	enough("one relay killed")
	l.through(apis[1].api) // where the clients of the other go on
	apis[0].kill()
	enough("one API killed")
	for _, p := range []*process{apis[0], relays[0], points[0]} {
		require.True(t, p.killed())
	}
	killed := time.Now()
	t.Logf("one of each killed; everything before settled %v", s.settledIn(t, killed).Round(10*time.Millisecond))
	l.requireHonest(t, s)
	require.Zero(t, metric(t, relays[1], "halfbox_outbox_lease_misses_total"))
	for _, p := range []*process{apis[1], relays[1], points[1]} {
		require.Zero(t, p.stop(t))
	}
}
