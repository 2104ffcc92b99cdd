package e2e

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/faults"
)

func everyOutbox(int) string { return "outbox" }

// cluster is an API and its broker in processes of their own. On real engines the broker is theirs.
type cluster struct {
	*site
	broker *process
	api    *process
	extra  []string // environment that names the broker and allows crash points
}

func startCluster(t testing.TB, s *site) *cluster {
	t.Helper()
	c := &cluster{site: s, extra: []string{faults.AllowVariable + "=1"}}
	if s.embedded() {
		c.broker = s.serveBroker(t, ownHost+":0")
		c.extra = append(c.extra, "HALFBOX_ROCKETMQ_NAME_SERVERS="+c.broker.broker)
	}
	c.api = c.role(t, "api,points")
	require.NotNil(t, c.api)
	return c
}

// role starts a process with these roles.
func (c *cluster) role(t testing.TB, roles string, args ...string) *process {
	t.Helper()
	return c.serve(t, c.extra, append([]string{"--roles", roles}, args...)...)
}

// statuses counts the event records by state.
func (c *cluster) statuses(t testing.TB) map[string]int64 {
	t.Helper()
	var counts []struct {
		Status string
		N      int64
	}
	c.query(t, "order", "SELECT status, COUNT(*) AS n FROM t_event_record GROUP BY status", &counts)
	by := map[string]int64{}
	for _, row := range counts {
		by[row.Status] = row.N
	}
	return by
}

// Two relays in two processes on the same files share the work: while leases hold, nothing is sent twice.
func TestTwoRelaysShareTheWork(t *testing.T) {
	t.Parallel()
	onEachSite(t, twoRelaysShareTheWork)
}

func twoRelaysShareTheWork(t *testing.T, s *site) {
	s.env = append(s.env, patient()...)
	c := startCluster(t, s)
	first, second := c.role(t, "relay"), c.role(t, "relay")
	all := wishes(200, everyOutbox)
	for _, w := range all {
		require.Equal(t, "outbox", w.fulfil(t, c.api.api).Via)
	}
	c.requireSettled(t)
	require.Eventually(t, func() bool { return c.statuses(t)["SUCCESS"] == int64(len(all)) }, wait, tick)
	sent := 0.0
	for _, relay := range []*process{first, second} {
		require.Zero(t, metric(t, relay, "halfbox_outbox_lease_misses_total"))
		sent += labelled(t, relay, "halfbox_outbox_attempts_total", "result", "success")
	}
	require.InDelta(t, len(all), sent, 0, "a record was sent twice")
	if s.embedded() { // RocketMQ's own redeliveries would count too
		// A message is counted after it is booked.
		handled := func() float64 { return metric(t, c.api, "halfbox_points_messages_total") }
		require.Eventually(t, func() bool { return handled() >= float64(len(all)) }, wait, tick)
		require.InDelta(t, len(all), handled(), 0, "a message was delivered twice")
	}
	for _, p := range []*process{first, second, c.api} {
		require.Zero(t, p.stop(t))
	}
	c.requireBooks(t, all)
}

// A relay that is frozen past its lease overwrites nothing when it wakes: its updates hit no rows and are counted.
func TestFrozenRelayOverwritesNothing(t *testing.T) {
	t.Parallel()
	onEachSite(t, frozenRelayOverwritesNothing)
}

func frozenRelayOverwritesNothing(t *testing.T, s *site) {
	for _, point := range []string{faults.OutboxAfterClaim, faults.OutboxAfterSend} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, s.another(t))
			// It reclaims nothing: if it froze in that statement it would hold SQLite's one write lock.
			frozen := c.serve(t, append(c.extra, "HALFBOX_OUTBOX_RECLAIM_INTERVAL=1h"), "--roles", "relay", "--fault", point+"=freeze@1")
			require.NotNil(t, frozen)
			all := wishes(3, everyOutbox)
			for _, w := range all {
				w.fulfil(t, c.api.api)
			}
			require.Eventually(t, func() bool { return state(t, frozen) == 'T' }, wait, tick, "it did not freeze")
			healthy := c.role(t, "relay")
			c.requireSettled(t)
			require.Eventually(t, func() bool { return c.statuses(t)["SUCCESS"] == int64(len(all)) }, wait, tick)
			require.Positive(t, metric(t, healthy, "halfbox_outbox_reclaimed_total"))

			frozen.signal(t, syscall.SIGCONT)
			require.Eventually(t, func() bool { return metric(t, frozen, "halfbox_outbox_lease_misses_total") > 0 }, wait, tick)
			require.Equal(t, map[string]int64{"SUCCESS": int64(len(all))}, c.statuses(t))
			for _, p := range []*process{frozen, healthy, c.api} {
				require.Zero(t, p.stop(t))
			}
			c.requireBooks(t, all)
		})
	}
}

func dead(p *process) bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// state is the process's state in /proc: 'T' is stopped.
func state(t testing.TB, p *process) byte {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	require.NoError(t, err)
	for i := len(stat) - 1; i >= 0; i-- {
		if stat[i] == ')' {
			return stat[i+2]
		}
	}
	return 0
}

// Each crash point of the relay, in a process that dies there.
func TestRelayCrashPoints(t *testing.T) {
	t.Parallel()
	onEachSite(t, relayCrashPoints)
}

func relayCrashPoints(t *testing.T, s *site) {
	for _, point := range []string{faults.OutboxAfterClaim, faults.OutboxAfterSend, faults.OutboxAfterMark} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, s.another(t))
			relay := c.role(t, "relay", "--fault", point+"=kill@2")
			require.NotNil(t, relay)
			all := wishes(6, everyOutbox)
			for _, w := range all {
				w.fulfil(t, c.api.api)
				// One claim for each order, so that the second claim is reached.
				require.Eventually(t, func() bool { return dead(relay) || c.statuses(t)["WAIT"] == 0 }, wait, tick)
			}
			<-relay.exited
			require.True(t, relay.killed())
			relay = c.role(t, "relay")
			c.requireSettled(t)
			require.Eventually(t, func() bool { return c.statuses(t)["SUCCESS"] == int64(len(all)) }, wait, tick)
			for _, p := range []*process{relay, c.api} {
				require.Zero(t, p.stop(t))
			}
			c.requireBooks(t, all)
		})
	}
}
