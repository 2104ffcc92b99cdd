package outbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := pace{perSecond: 100}
	p.spend(now, 1000)
	require.Zero(t, p.wait(now))
	require.Equal(t, 20, p.limit(20))
	require.False(t, p.freshTurn(now))
	p.start(now)
	require.Equal(t, 2, p.limit(20))
	require.Equal(t, 1, p.limit(1))
	p.perSecond = 99
	require.Equal(t, 2, p.limit(20), "one at a time would be more bursts a second")
	p.perSecond = 100
	require.False(t, p.freshTurn(now), "the backlog begins")
	p.spend(now, 10)
	require.Equal(t, 100*time.Millisecond, p.wait(now))
	require.True(t, p.freshTurn(now))
	require.True(t, p.freshTurn(now.Add(99*time.Millisecond)), "the backlog has to wait")
	now = now.Add(time.Second)
	require.False(t, p.freshTurn(now))
	p.spend(now, 10) // idle time is not saved up
	require.Equal(t, 100*time.Millisecond, p.wait(now))
	now = now.Add(100 * time.Millisecond)
	require.True(t, p.freshTurn(now), "in turns")
	require.False(t, p.freshTurn(now), "in turns")
	p.look = now.Add(time.Second)
	require.False(t, p.freshTurn(now), "there was nothing just now")
	p.stop()
	require.Zero(t, p.wait(now))
	slow := pace{perSecond: 1, active: true}
	require.Equal(t, 1, slow.limit(20))
}

// TestPacedDrain: what waited while the sink was away, or while no relay ran, is sent at the limited rate.
func TestPacedDrain(t *testing.T) {
	t.Parallel()
	for _, away := range []string{"sink", "relay"} {
		t.Run(away, func(t *testing.T) {
			t.Parallel()
			e := newSQLite(t)
			db := e.db(t)
			write(t, db, "A", 60)
			down := away == "sink"
			type sent struct{ began, at time.Time } // its round, and the send itself, which may be late
			var began time.Time
			var all []sent
			sink := newFakeSink(nil)
			sink.answer = func(_ context.Context, batch []Record) error {
				if down {
					return Unreachable(errors.New("down"))
				}
				for range batch {
					all = append(all, sent{began, time.Now()})
				}
				return nil
			}
			cfg := testConfig(t, db, sink)
			cfg.DrainRate = 200
			r := newTestRelay(t, cfg)
			if down {
				mustOnce(t, caughtUp(r))
				down = false
			}
			eventually(t, func() bool {
				began = time.Now()
				sleep(t.Context(), mustOnce(t, r).pause)
				return countStatus(t, db, StatusSuccess) == 60
			}, "")
			require.GreaterOrEqual(t, all[59].at.Sub(all[0].began), 280*time.Millisecond, "60 events at 200/s, bursts of 4 at most")
			for i := 30; i < 60; i++ {
				require.GreaterOrEqual(t, all[i].at.Sub(all[i-30].began), 140*time.Millisecond, "no spike")
			}
		})
	}
}

// TestDrainLetsFreshEventsPass: while the backlog of an outage is drained at its limited rate, what is written then is
// sent with one of the next two batches.
func TestDrainLetsFreshEventsPass(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for _, ordered := range []bool{false, true} {
			db := e.db(t)
			require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
			write(t, db, "OLD", 100)
			sink := newFakeSink(nil)
			cfg := testConfig(t, db, sink)
			cfg.Claim, cfg.Batch = mode, 4
			if ordered {
				cfg.Ordered = map[string]HeadOfLine{"main": HeadOfLineBlock}
			}
			r := newTestRelay(t, cfg)
			l := r.loops[0]
			next := func() { l.pace.next, l.pace.look = time.Time{}, time.Time{}; mustOnce(t, r) } // the rate is the matter of another test
			next()
			pastSince(t, r)
			for i := range 5 {
				write(t, db, fmt.Sprintf("NEW%d-", i), 2)
				next()
				next()
				require.True(t, l.pace.active)
				for _, subject := range []string{"0", "1"} {
					require.Equal(t, StatusSuccess, entryOf(t, db, fmt.Sprintf("NEW%d-%s", i, subject)).Status)
				}
			}
			require.GreaterOrEqual(t, sink.count()["OLD0"], 1, "the backlog goes on from its old end")
			require.GreaterOrEqual(t, sink.count()["OLD19"], 1)
		}
	})
}

// pastSince waits until the database's clock has left the moment in which the drain began: SQLite's counts milliseconds.
func pastSince(t *testing.T, r *Relay) {
	t.Helper()
	eventually(t, func() bool {
		now, err := r.store.clock(t.Context())
		require.NoError(t, err)
		return now > r.loops[0].pace.since
	}, "the clock stands still")
}

// TestDrainKeepsUpWithFreshEvents although there are more of them than the rate of the drain allows.
func TestDrainKeepsUpWithFreshEvents(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "OLD", 30)
		sink := newFakeSink(nil)
		cfg := testConfig(t, db, sink)
		cfg.Claim, cfg.Batch, cfg.DrainRate = mode, 10, 1
		r := newTestRelay(t, cfg)
		require.Equal(t, 1, mustOnce(t, r).claimed)
		turn := time.Now().Add(time.Hour)
		r.loops[0].pace.next = turn // on a slow machine a second is over before the end
		pastSince(t, r)
		for i := range 5 {
			write(t, db, fmt.Sprintf("NEW%d-", i), 20)
			for range 2 {
				require.Equal(t, 10, mustOnce(t, r).claimed)
			}
			res := mustOnce(t, r)
			require.Zero(t, res.claimed)
			require.Positive(t, res.pause, "the backlog waits for its time")
			require.True(t, res.fresh, "and a nudge ends the pause")
		}
		write(t, db, "FEW", 3)
		res := mustOnce(t, r)
		require.Equal(t, 3, res.claimed)
		require.True(t, res.fresh && res.pause > 0, "less than a batch is the end of it, and the backlog's time is waited for")
		require.Equal(t, turn, r.loops[0].pace.next, "what is fresh is not counted")
		require.Equal(t, 104, countStatus(t, db, StatusSuccess))
		require.Equal(t, 29, countStatus(t, db, StatusWait))
	})
}

// TestDrainEndsWithItsBacklog, however much is written meanwhile, and whatever a dead letter holds back.
func TestDrainEndsWithItsBacklog(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for _, ordered := range []bool{false, true} {
			db := e.db(t)
			require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
			cfg := testConfig(t, db, newFakeSink(nil))
			cfg.Claim, cfg.Batch, cfg.DrainRate = mode, 10, 100
			if ordered {
				cfg.Ordered = map[string]HeadOfLine{"main": HeadOfLineBlock}
				writeVersions(t, db, "HELD", 1, 120)
				require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL' WHERE aggregate_version = 1").Error)
			}
			write(t, db, "OLD", 5)
			r := newTestRelay(t, cfg)
			l := r.loops[0]
			mustOnce(t, r)
			require.True(t, l.pace.draining)
			pastSince(t, r)
			for rounds := 0; l.pace.active; rounds++ {
				require.Less(t, rounds, 50, "ordered: %t", ordered)
				write(t, db, fmt.Sprintf("NEW%d-", rounds), 2)
				if l.order != nil {
					l.order.rest = time.Time{}
				}
				l.pace.next, l.pace.look = time.Time{}, time.Time{}
				res := mustOnce(t, r)
				require.True(t, res.more || l.pace.active, "what was just written is due")
			}
			for i := range 5 {
				require.Equal(t, StatusSuccess, entryOf(t, db, fmt.Sprint("OLD", i)).Status)
			}
		}
	})
}

// TestSlowFreshClaimsGetSmaller, whatever becomes of the claims from the backlog between them: those are small.
func TestSlowFreshClaimsGetSmaller(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "OLD", 60)
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.Batch, cfg.BatchMax, cfg.DrainRate = 8, 64, 100
	r := newTestRelay(t, cfg)
	l := r.loops[0]
	l.batch = 64
	for range 5 {
		l.pace.next, l.pace.look, l.pace.fresh = time.Time{}, time.Time{}, true
		require.Equal(t, 2, mustOnce(t, r).claimed)
		require.Equal(t, 64, l.batch)
	}
	l.batch = 16 // after claims of 64 and 32 that took too long
	for range 5 {
		l.pace.next, l.pace.look, l.pace.fresh = time.Time{}, time.Time{}, true
		require.Equal(t, 2, mustOnce(t, r).claimed)
		require.Equal(t, 16, l.batch, "a claim of 2 does not say that more are bearable")
	}
}
