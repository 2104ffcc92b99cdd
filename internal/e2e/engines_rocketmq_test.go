package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

// slowDatabase gives local transactions more time than a pause of the machine takes: without RocketMQ no order is
// refused.
func slowDatabase() []string {
	return []string{"HALFBOX_TXMSG_LOCAL_TIMEOUT=8s", "HALFBOX_CHECKBACK_GRACE=9s"}
}

func rocketmqRestarted(t *testing.T, e *engines, away func()) {
	x := e.start(t, slowDatabase()...)
	away()
	gone := time.Now()
	require.Eventually(t, func() bool { return x.l.answered(gone, fellBack) >= 20 }, wait, tick, "orders do not fall back: %v", x.l)
	require.Eventually(t, func() bool {
		status, checked := checks(t, x.p.admin)
		return status == http.StatusOK && strings.HasPrefix(checked["rocketmq"], "degraded: ")
	}, wait, tick, "it takes orders, and says what is missing")
	at := brokerBack(t, e.rocketmq)
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
	x := e.start(t, slowDatabase()...)
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
	x := e.start(t, slowDatabase()...)
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
	// Nobody's lease runs out but that of the relay that is killed.
	s.env = append(s.env, "HALFBOX_OUTBOX_LEASE=20s", "HALFBOX_OUTBOX_SEND_TIMEOUT=5s")
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
