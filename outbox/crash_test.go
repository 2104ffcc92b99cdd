package outbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// exclusive is a far end that notices when two relays send the same event within one lease.
type exclusive struct {
	mu    sync.Mutex
	owner map[string]string // subject -> relay that is sending it
	both  []string
	sent  map[string]int
}

func (x *exclusive) sink(relay string, work time.Duration) *fakeSink {
	return newFakeSink(func(ctx context.Context, batch []Record) error {
		x.mu.Lock()
		for _, r := range batch {
			if x.sent[r.BizNo] > 0 || x.owner[r.BizNo] != "" {
				x.both = append(x.both, r.BizNo+" by "+x.owner[r.BizNo]+" and "+relay)
			}
			x.owner[r.BizNo] = relay
			x.sent[r.BizNo]++
		}
		x.mu.Unlock()
		sleep(ctx, work)
		return nil
	})
}

// TestTwoRelaysShareATable: no event is sent by both while its lease holds. The leases are long: on a busy machine a
// write-back may wait for SQLite's one writer for longer than a short one, and a second send would then be right.
func TestTwoRelaysShareATable(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		x := &exclusive{owner: map[string]string{}, sent: map[string]int{}}
		var relays []*Relay
		for i := range 2 {
			name := fmt.Sprint("relay", i)
			cfg := testConfig(t, e.db(t), x.sink(name, time.Millisecond))
			cfg.Claim, cfg.Instance, cfg.Lease = mode, name, time.Hour
			if i == 1 && e.name == "mysql" {
				cfg.Claim = ClaimConditionalUpdate // the two ways go together
			}
			r := newTestRelay(t, cfg)
			relays = append(relays, r)
			start(t, r)
		}
		write(t, db, "A"+string(mode), 200)
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 200 }, "")
		x.mu.Lock()
		defer x.mu.Unlock()
		require.Empty(t, x.both)
		require.Len(t, x.sent, 200)
		for _, r := range relays {
			require.Zero(t, totalMisses(r))
		}
	})
}

// dead makes a database handle whose statements all fail from the moment kill is called: the process is gone.
func dead(t *testing.T, e *engine) (db *database.DB, kill func()) {
	var gone atomic.Bool
	db = e.open(t, database.Options{Hooks: database.Hooks{Before: func(database.Op, string) error {
		if gone.Load() {
			return errInjected
		}
		return nil
	}}})
	return db, func() { gone.Store(true) }
}

// TestRelayDies between claim and send, send and mark, and after the mark: the next relay finishes its work.
func TestRelayDies(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for _, point := range []string{"claim", "send", "mark"} {
			plain := e.db(t)
			require.NoError(t, plain.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, plain.Write.Exec("DELETE FROM t_local").Error)
			write(t, plain, "A", 5)
			db, kill := dead(t, e)
			sink := newFakeSink(nil)
			cfg := testConfig(t, db, sink)
			cfg.Claim = mode
			hard, cancel := context.WithCancel(t.Context())
			hook := func() { kill(); cancel() }
			switch point {
			case "claim":
				cfg.Hooks.AfterClaim = hook
			case "send":
				cfg.Hooks.AfterSend = hook
			case "mark":
				cfg.Hooks.AfterMark = hook
			}
			_, err := newTestRelay(t, cfg).loops[0].runOnce(t.Context(), hard)
			require.ErrorIs(t, hard.Err(), context.Canceled, point)
			if point != "mark" {
				require.Error(t, err)
				require.Equal(t, 5, countStatus(t, plain, StatusSending))
			}
			expire(t, plain)

			next := newFakeSink(nil)
			cfg2 := testConfig(t, plain, next)
			cfg2.Claim = mode
			heir := newTestRelay(t, cfg2)
			require.NoError(t, heir.Start())
			left := map[string]int{"claim": 5, "send": 5, "mark": 0}[point]
			reclaimed := func() int { return int(testutil.ToFloat64(heir.metrics.reclaimed.WithLabelValues("main"))) }
			// What is reclaimed may be sent before it is counted, and a statement that Stop cuts off is not.
			eventually(t, func() bool { return countStatus(t, plain, StatusSuccess) == 5 && reclaimed() >= left }, point)
			sent := 0
			for _, n := range next.count() {
				sent += n
			}
			require.Equal(t, left, sent, point)
			require.NoError(t, heir.Stop(t.Context()))
			require.Equal(t, left, reclaimed(), point)
		}
	})
}
