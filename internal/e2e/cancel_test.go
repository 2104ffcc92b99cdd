package e2e

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/faults"
)

// Each crash point of a cancellation in turn: the process kills itself there, starts again, and the clients cancel
// again. Every order is cancelled once and ends with net zero points.
func TestCancelCrashPoints(t *testing.T) {
	t.Parallel()
	onEachSite(t, cancelCrashPoints)
}

func cancelCrashPoints(t *testing.T, s *site) {
	for point, voids := range map[string]bool{ // a half was rolled back by its check
		faults.TxmsgBeforeHalf:        false,
		faults.TxmsgAfterHalf:         true,
		faults.TxmsgBeforeLocalCommit: true,
		faults.TxmsgAfterLocalCommit:  false,
		faults.TxmsgAfterEnd:          false,
		faults.PointsBeforeCommit:     false,
		faults.PointsAfterCommit:      false,
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := s.another(t)
			all := cancelling(1, wishes(4, everyTxmsg))
			p := s.serve(t, nil)
			require.NotNil(t, p)
			numbers := make([]string, len(all))
			for i, w := range all {
				w.Cancel = false
				numbers[i] = w.fulfil(t, p.api).OrderNo
			}
			s.requireSettled(t) // what the armed process does is to cancel
			require.Zero(t, p.stop(t))

			p = s.serve(t, []string{faults.AllowVariable + "=1"}, "--fault", point+"=kill@2")
			require.NotNil(t, p)
			for i := range all { // one at a time: which cancellation meets the crash is certain
				if _, err := cancelOrder(p.api, numbers[i], "txmsg"); err != nil {
					break
				}
			}
			p.awaitKilled(t)

			p = s.serve(t, nil)
			require.NotNil(t, p)
			for i, w := range all {
				require.Equal(t, numbers[i], w.fulfil(t, p.api).OrderNo)
			}
			if voids {
				require.Eventually(t, func() bool { return s.transactions(t, "VOID") > 0 }, wait, 5*tick, "no half message was voided")
			}
			s.requireWhole(t, p, all)
			require.Equal(t, len(all), s.transactions(t, "COMMITTED"), "one cancellation of each order")
		})
	}
}

// transactions counts the rows of t_tx_log in a state.
func (s *site) transactions(t testing.TB, state string) (n int) {
	t.Helper()
	s.query(t, "order", fmt.Sprintf("SELECT COUNT(*) FROM t_tx_log WHERE state = '%s'", state), &n)
	return n
}

// A process is frozen in its local transaction: after its INSERT, or after its cancel's UPDATE. Others go on (MySQL), or
// check-backs answer UNKNOWN until it wakes (SQLite). What it had begun is rolled back and a repetition succeeds; on
// SQLite, whose lock it kept, it may also wake in time and commit. Either way its answer is the truth.
func TestFrozenInItsLocalTransaction(t *testing.T) {
	t.Parallel()
	onEachSite(t, func(t *testing.T, s *site) {
		for name, cancel := range map[string]bool{"create": false, "cancel": true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				frozenInItsLocalTransaction(t, startCluster(t, s.another(t)), cancel)
			})
		}
	})
}

// sessionWait is the wait_timeout of our sessions on MySQL.
const sessionWait = 30 * time.Second

func frozenInItsLocalTransaction(t *testing.T, c *cluster, cancel bool) {
	relay := c.role(t, "relay")
	w := wish{Key: "frozen", UserID: 5, Amount: 12300, Delivery: "txmsg"}
	ask := w.post
	if cancel {
		no := w.fulfil(t, c.api.api).OrderNo
		w.Cancel = true
		ask = func(api string) (answer, error) { return cancelOrder(api, no, "txmsg") }
	}
	before := wish{Key: "before", UserID: 6, Amount: 100, Delivery: "outbox"}
	beforeNo := before.fulfil(t, c.api.api).OrderNo

	// However late its half message is acknowledged, it does not go by the outbox.
	frozen := c.serve(t, append(c.extra, "HALFBOX_TXMSG_HALF_TIMEOUT=15s"), "--roles", "api", "--fault", faults.TxmsgBeforeLocalCommit+"=freeze@1")
	require.NotNil(t, frozen)
	got, isFrozen := make(chan outcome, 1), make(chan struct{})
	go func() {
		for {
			a, err := ask(frozen.api)
			select {
			case <-isFrozen:
			default:
				if err == nil {
					continue // on a busy machine its deadline may pass before
				}
			}
			got <- outcome{a, err}
			return
		}
	}()
	require.Eventually(t, func() bool { return state(t, frozen) == 'T' }, wait, tick, "it did not freeze")
	close(isFrozen)
	since := time.Now()
	voided := c.voided(t, cancel) // by then, on a busy machine

	all := []wish{w, before}
	if c.embedded() {
		// It holds the one write lock: nobody writes, and checks answer UNKNOWN, until it wakes.
		other, err := wish{Key: "other", UserID: 6, Amount: 100, Delivery: "txmsg"}.post(c.api.api)
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, other.Status)
		// The broker asks in turn, so the one that is frozen has been asked too before this one was for the second time. It
		// answers when it wakes, which is what voids its attempt.
		require.Eventually(t, func() bool {
			return labelled(t, c.api, "halfbox_checkback_answers_total", "reason", "error") > 1
		}, wait, tick, "no check was answered UNKNOWN")
		require.Equal(t, voided, c.voided(t, cancel), "nothing is decided meanwhile")
		frozen.signal(t, syscall.SIGCONT)
	} else {
		// Only what it has locked waits, and only until its session is ended.
		other := wish{Key: "other", UserID: 6, Amount: 100, Delivery: "txmsg"}
		other.fulfil(t, c.api.api)
		a, err := cancelOrder(c.api.api, beforeNo, "txmsg")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, a.Status, "the cancellation of another order")
		all[1].Cancel = true
		all = append(all, other)
		require.Less(t, time.Since(since), sessionWait, "others were blocked")
		w.fulfil(t, c.api.api)
		t.Logf("a repetition succeeded %v after the process was frozen", time.Since(since).Round(10*time.Millisecond))
		require.Less(t, time.Since(since), sessionWait+backWithin)
		frozen.signal(t, syscall.SIGCONT)
	}
	var done bool
	select {
	case o := <-got: // its client may have given up
		done = o.err == nil && o.made()
		if done {
			require.True(t, c.embedded(), "what was rolled back was answered as done: %+v", o)
			require.Equal(t, o.OrderNo, w.fulfil(t, c.api.api).OrderNo, "it woke in time and committed: that was the truth")
		}
	case <-time.After(wait):
		t.Fatal("no answer")
	}
	w.fulfil(t, c.api.api)
	if !done {
		require.Eventually(t, func() bool { return c.voided(t, cancel) > voided }, 2*wait, 10*tick, "the half message stays undecided")
	}
	if c.embedded() {
		other := wish{Key: "other", UserID: 6, Amount: 100, Delivery: "txmsg"}
		other.fulfil(t, c.api.api)
		all = append(all, other)
	}
	c.requireSettled(t)
	for _, p := range []*process{frozen, relay, c.api} {
		require.Zero(t, p.stop(t))
	}
	c.requireBooks(t, all)
}

// voided counts the tombstones of creations or of cancellations.
func (s *site) voided(t testing.TB, cancel bool) int {
	t.Helper()
	if cancel {
		return s.transactions(t, "VOID")
	}
	return s.readBooks(t).voids
}
