package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/faults"
)

// What the broker has given up on, with nobody there to be asked: on the embedded engines here, on MySQL and RocketMQ
// in TestEnginesRescue.
func TestRescue(t *testing.T) {
	t.Parallel()
	rescues(t, "", func(t *testing.T) *site {
		s := embeddedSite(t)
		s.env = append(s.env, "HALFBOX_BROKER_CHECK_MAX=2", "HALFBOX_BROKER_CHECK_INTERVAL=1s")
		return s
	})
}

// The same on MySQL and a RocketMQ that gives up after two checks a second apart.
func TestEnginesRescue(t *testing.T) {
	t.Parallel()
	q := enginetest.OwnRocketMQ(t, "transactionTimeOut=1000", "transactionCheckInterval=1000", "transactionCheckMax=2")
	rescues(t, q.NameServers()[0], func(t *testing.T) *site {
		return newRealSite(t, enginetest.MySQL(t), enginetest.MySQL(t), q.NameServers())
	})
}

func rescues(t *testing.T, nameServer string, newSite func(t *testing.T) *site) {
	for name, test := range map[string]func(t *testing.T, s *rescueSite){
		"producers down after the local transaction": rescueOfACommit,
		"producers down before it":                   rescueOfNothing,
		"producer frozen in it":                      rescueBesideALateCommit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newRescueSite(t, newSite(t), nameServer))
		})
	}
}

// rescueSite has a relay and a consumer; the API of each test comes and goes.
type rescueSite struct {
	*cluster
	relay, points     *process
	nameServer, group string
}

func newRescueSite(t *testing.T, s *site, nameServer string) *rescueSite {
	t.Helper()
	group := enginetest.Group(t)
	s.env = append(s.env, patient()...)
	s.env = append(s.env, "HALFBOX_RESCUE_POLL=100ms", "HALFBOX_ROCKETMQ_TRANSACTION_GROUP="+group)
	r := &rescueSite{group: group, cluster: &cluster{site: s, extra: []string{faults.AllowVariable + "=1"}}}
	if s.embedded() {
		r.broker = s.serveBroker(t, ownHost+":0")
		nameServer = r.broker.broker
		r.extra = append(r.extra, "HALFBOX_ROCKETMQ_NAME_SERVERS="+r.broker.broker)
	}
	r.nameServer = nameServer
	r.points, r.relay = r.role(t, "points"), r.role(t, "relay")
	require.NotNil(t, r.points)
	require.NotNil(t, r.relay)
	return r
}

// rescued is how many half messages the relay's rescue has given this outcome.
func (r *rescueSite) rescued(t *testing.T, outcome string) float64 {
	t.Helper()
	return labelled(t, r.relay, "halfbox_rescue_halves_total", "outcome", outcome)
}

// labelled reads one series of a metric.
func labelled(t testing.TB, p *process, name, label, value string) float64 {
	t.Helper()
	_, text := get(t, p.admin+"/metrics")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, fmt.Sprintf("%s=%q", label, value)) {
			var n float64
			_, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &n)
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "no such series", "%s %s=%s", name, label, value)
	return 0
}

// records returns the order numbers of the event records by msg_id.
func (r *rescueSite) records(t *testing.T) map[string]string {
	t.Helper()
	var found []struct{ MsgID, BizNo string }
	r.query(t, "order", "SELECT msg_id, biz_no FROM t_event_record", &found)
	by := map[string]string{}
	for _, f := range found {
		by[f.MsgID] = f.BizNo
	}
	return by
}

// dieAt asks for orders until the API dies at a crash point, and returns them all; the last one has no answer.
func (r *rescueSite) dieAt(t *testing.T, point string) (all []wish, lost wish) {
	t.Helper()
	api := r.role(t, "api", "--fault", point+"=kill@1")
	require.NotNil(t, api)
	for n := range 50 {
		lost = wish{Key: fmt.Sprintf("key-%d", n), UserID: 3, Amount: 700, Delivery: "txmsg"}
		all = append(all, lost)
		var err error
		require.Eventually(t, func() bool {
			var a answer
			a, err = lost.post(api.api)
			return err != nil || a.made()
		}, wait, tick, "no order for %s", lost.Key)
		if err != nil {
			api.awaitKilled(t)
			return all, lost
		}
	}
	t.Fatalf("%s is not reached", point)
	return nil, wish{}
}

// The API dies when the transaction has committed and the broker does not know yet; nobody can be asked until the
// broker gives up. The relay publishes exactly that event, under the half message's id.
func rescueOfACommit(t *testing.T, r *rescueSite) {
	all, lost := r.dieAt(t, faults.TxmsgAfterLocalCommit)
	require.Eventually(t, func() bool { return r.rescued(t, "republished") == 1 }, wait, 5*tick, "not rescued")
	r.requireSettled(t)
	b := r.requireBooks(t, all)
	for _, o := range b.orders {
		if o.IdempotencyKey == lost.Key {
			require.Equal(t, "txmsg", o.Delivery)
			require.Equal(t, o.OrderNo, r.records(t)[o.MsgID], "the record's order")
		}
	}
	require.Zero(t, labelled(t, r.points, "halfbox_points_messages_total", "outcome", "duplicate_msg_id"))
}

// The API dies before the local transaction: the tombstone stays, nothing is published, and the client's repetition
// makes the order.
func rescueOfNothing(t *testing.T, r *rescueSite) {
	all, lost := r.dieAt(t, faults.TxmsgAfterHalf)
	require.Eventually(t, func() bool { return r.rescued(t, "rolled_back") == 1 }, wait, 5*tick, "not decided")
	require.Zero(t, r.rescued(t, "republished"))
	b := r.readBooks(t)
	require.Equal(t, 1, b.voids)
	require.Len(t, b.orders, len(all)-1)

	api := r.role(t, "api")
	require.NotNil(t, api)
	lost.fulfil(t, api.api)
	r.requireSettled(t)
	r.requireBooks(t, all)
}

// The API is frozen inside its local transaction until the broker has given up: the rescue waits. When it wakes the
// transaction commits, the rescue publishes it, and so does the broker on the late COMMIT: two deliveries under one
// id, credited once.
func rescueBesideALateCommit(t *testing.T, r *rescueSite) {
	api := r.serve(t, append(r.extra, "HALFBOX_TXMSG_LOCAL_TIMEOUT=25s"), "--roles", "api", "--fault", faults.TxmsgBeforeLocalCommit+"=freeze@1")
	require.NotNil(t, api)
	got := make(chan answer, 1)
	var all []wish
	go func() { // on a busy machine one may go by the outbox before
		defer close(got)
		for n := range 50 {
			w := wish{Key: fmt.Sprintf("key-%d", n), UserID: 3, Amount: 700, Delivery: "txmsg"}
			all = append(all, w)
			a, err := w.post(api.api)
			if err != nil || a.Status != http.StatusCreated {
				t.Errorf("%+v, %v", a, err)
				return
			}
			if a.Via == "txmsg" {
				got <- a
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return state(t, api) == 'T' }, wait, tick, "COMMIT is not reached")
	require.Eventually(t, func() bool { return len(enginetest.Discarded(t, r.nameServer, r.group)) == 1 }, wait, 5*tick, "not given up")
	if !r.embedded() { // on SQLite the frozen process holds the one write lock: the rescue does not even get its lease
		require.Eventually(t, func() bool { return metric(t, r.relay, "halfbox_rescue_held") == 1 }, wait, 5*tick, "the rescue does not wait")
	}
	never(t, time.Second, func() bool { return r.rescued(t, "republished")+r.rescued(t, "rolled_back") > 0 }, "decided while the transaction was open")
	api.signal(t, syscall.SIGCONT)
	a, ok := <-got
	require.True(t, ok, "no order by txmsg")
	<-got // closed: all is ours now

	require.Eventually(t, func() bool { return r.rescued(t, "republished") == 1 }, wait, 5*tick, "not rescued")
	doubles := func() float64 {
		return labelled(t, r.points, "halfbox_points_messages_total", "outcome", "duplicate_msg_id")
	}
	// RocketMQ carries out every COMMIT: that of the producer, and those of the questions that waited for it to wake.
	require.Eventually(t, func() bool { return doubles() >= 1 }, wait, 5*tick, "the late COMMIT does not deliver")
	r.requireSettled(t)
	b := r.requireBooks(t, all)
	require.Equal(t, a.MsgID, b.orders[a.OrderNo].MsgID)
	require.Equal(t, a.OrderNo, r.records(t)[a.MsgID])
	t.Logf("delivered %.0f times more than once", doubles())
}
