package e2e

import (
	"fmt"
	"net/http"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/faults"
)

func everyOutbox(int) string { return "outbox" }

// cluster is a broker and an API in processes of their own, on one data folder.
type cluster struct {
	data   string
	broker *process
	api    *process
	env    []string // names the broker
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{data: t.TempDir()}
	c.broker = serveBroker(t, c.data, "127.0.0.1:0")
	c.env = []string{"HALFBOX_ROCKETMQ_NAME_SERVERS=" + c.broker.broker, faults.AllowVariable + "=1"}
	c.api = serve(t, c.data, c.env, "--roles", "api,points")
	require.NotNil(t, c.api)
	return c
}

func (c *cluster) relay(t testing.TB, args ...string) *process {
	t.Helper()
	return serve(t, c.data, c.env, append([]string{"--roles", "relay"}, args...)...)
}

// statuses counts the event records by state.
func (c *cluster) statuses(t testing.TB) map[string]int64 {
	t.Helper()
	var counts []struct {
		Status string
		N      int64
	}
	query(t, c.data, "order", "SELECT status, COUNT(*) AS n FROM t_event_record GROUP BY status", &counts)
	by := map[string]int64{}
	for _, row := range counts {
		by[row.Status] = row.N
	}
	return by
}

// Two relays in two processes on the same files share the work: while leases hold, nothing is sent twice.
func TestTwoRelaysShareTheWork(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	first, second := c.relay(t), c.relay(t)
	all := wishes(200, everyOutbox)
	for _, w := range all {
		a, err := w.post(c.api.api)
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, a.Status)
		require.Equal(t, "outbox", a.Via)
	}
	requireSettled(t, c.data)
	require.Eventually(t, func() bool { return c.statuses(t)["SUCCESS"] == int64(len(all)) }, wait, tick)
	for _, relay := range []*process{first, second} {
		require.Zero(t, metric(t, relay, "halfbox_outbox_lease_misses_total"))
	}
	require.InDelta(t, len(all), metric(t, c.api, "halfbox_points_messages_total"), 0, "a message was sent twice")
	for _, p := range []*process{first, second, c.api} {
		require.Zero(t, p.stop(t))
	}
	requireBooks(t, c.data, all)
}

// A relay that is frozen past its lease overwrites nothing when it wakes: its updates hit no rows and are counted.
func TestFrozenRelayOverwritesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []string{faults.OutboxAfterClaim, faults.OutboxAfterSend} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t)
			frozen := c.relay(t, "--fault", point+"=freeze@1")
			require.NotNil(t, frozen)
			all := wishes(3, everyOutbox)
			for _, w := range all {
				w.fulfil(t, c.api.api)
			}
			require.Eventually(t, func() bool { return state(t, frozen) == 'T' }, wait, tick, "it did not freeze")
			healthy := c.relay(t)
			requireSettled(t, c.data)
			require.Eventually(t, func() bool { return c.statuses(t)["SUCCESS"] == int64(len(all)) }, wait, tick)
			require.Positive(t, metric(t, healthy, "halfbox_outbox_reclaimed_total"))

			frozen.signal(t, syscall.SIGCONT)
			require.Eventually(t, func() bool { return metric(t, frozen, "halfbox_outbox_lease_misses_total") > 0 }, wait, tick)
			require.Equal(t, map[string]int64{"SUCCESS": int64(len(all))}, c.statuses(t))
			for _, p := range []*process{frozen, healthy, c.api} {
				require.Zero(t, p.stop(t))
			}
			requireBooks(t, c.data, all)
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
	for _, point := range []string{faults.OutboxAfterClaim, faults.OutboxAfterSend, faults.OutboxAfterMark} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t)
			relay := c.relay(t, "--fault", point+"=kill@2")
			require.NotNil(t, relay)
			all := wishes(6, everyOutbox)
			for _, w := range all {
				w.fulfil(t, c.api.api)
				// One claim for each order, so that the second claim is reached.
				require.Eventually(t, func() bool { return dead(relay) || c.statuses(t)["WAIT"] == 0 }, wait, tick)
			}
			<-relay.exited
			require.True(t, relay.killed())
			relay = c.relay(t)
			requireSettled(t, c.data)
			require.Eventually(t, func() bool { return c.statuses(t)["SUCCESS"] == int64(len(all)) }, wait, tick)
			for _, p := range []*process{relay, c.api} {
				require.Zero(t, p.stop(t))
			}
			requireBooks(t, c.data, all)
		})
	}
}
