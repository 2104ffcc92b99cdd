package outbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOrderedDrainIsPacedToItsEnd: the limit of the rate holds until the last version of every key is sent, not only
// until each key was met once.
func TestOrderedDrainIsPacedToItsEnd(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		const keys, versions = 30, 6
		for i := range keys {
			writeVersions(t, db, fmt.Sprint("K", i), 1, versions)
		}
		r := orderedRelay(t, db, mode, HeadOfLineBlock, newFakeSink(nil))
		l := r.loops[0]
		for rounds := 0; countStatus(t, db, StatusWait) > 0; rounds++ {
			require.True(t, l.pace.active || countStatus(t, db, StatusWait) < l.cfg.Batch, "%d are left", countStatus(t, db, StatusWait))
			require.Less(t, rounds, 100)
			l.pace.next = time.Time{} // the rate is the matter of another test
			mustOnce(t, r)
		}
		untilIdle(t, r)
		require.False(t, l.pace.active)
	})
}

// TestRestDoesNotEndADrain: after a pass that met a held key, the newest alone are looked at for a while. That there is
// nothing to send among them says nothing about the backlog.
func TestRestDoesNotEndADrain(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		writeVersions(t, db, "HELD", 1, 80)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL' WHERE aggregate_version = 1").Error)
		for i := range 10 {
			writeVersions(t, db, fmt.Sprint("K", i), 1, 12)
		}
		writeVersions(t, db, "HELD", 81, 110)
		r := orderedRelay(t, db, mode, HeadOfLineBlock, newFakeSink(nil))
		l := r.loops[0]
		mustOnce(t, r)
		pastSince(t, r)
		unsent := func() (n int) {
			require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM t_event_record WHERE status = 'WAIT' AND partition_key <> 'HELD'").Scan(&n).Error)
			return n
		}
		rested := false
		for rounds := 0; unsent() > 0; rounds++ {
			require.Less(t, rounds, 300)
			require.True(t, l.pace.active, "%d are left", unsent())
			l.pace.next = time.Time{} // the rate is the matter of another test
			if !rested && !l.order.rest.IsZero() {
				rested = true
				l.order.rest, l.pace.fresh = time.Now().Add(time.Hour), true
				mustOnce(t, r)
				require.True(t, l.pace.active, "in the rest, %d are left", unsent())
				for i := range 3 {
					write(t, db, fmt.Sprint("NEW", i), 1)
					require.Equal(t, 1, mustOnce(t, r).claimed, "what is new does not wait for the end of the rest")
				}
			}
			l.order.rest = time.Time{}
			mustOnce(t, r)
		}
		require.True(t, rested, "there was a rest before the end")
		l.order.rest = time.Time{}
		eventually(t, func() bool { mustOnce(t, r); return !l.pace.active }, "the drain ends")
	})
}

// TestOrderedDrainBeginsAtTheOldEnd: what was put off when the sink went away lies before the place that the pass had
// reached, and is part of the backlog too.
func TestOrderedDrainBeginsAtTheOldEnd(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "K", 25)
		sink := newFakeSink(nil)
		r := caughtUp(orderedRelay(t, db, mode, HeadOfLineBlock, sink, func(c *RelayConfig) { c.Batch, c.DrainRate = 10, 100 }))
		l := r.loops[0]
		require.Equal(t, 10, mustOnce(t, r).claimed)
		sink.answer = func(context.Context, []Record) error { return Unreachable(errors.New("down")) }
		mustOnce(t, r)
		require.False(t, l.breaker.openUntil.IsZero())
		sink.answer = nil
		l.breaker.openUntil = time.Now()
		for rounds := 0; countStatus(t, db, StatusWait) > 0; rounds++ {
			require.Less(t, rounds, 50)
			mustOnce(t, r)
			require.True(t, l.pace.active || countStatus(t, db, StatusWait) == 0, "%d are left", countStatus(t, db, StatusWait))
			l.pace.next = time.Time{} // the rate is the matter of another test
		}
	})
}

// TestHeldKeyHidesNoFreshEvents: while a backlog waits for its time, an event of another key is sent although more of a
// held key than a batch has come after it.
func TestHeldKeyHidesNoFreshEvents(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		writeVersions(t, db, "HELD", 1, 1)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL'").Error)
		write(t, db, "OLD", 30)
		r := orderedRelay(t, db, mode, HeadOfLineBlock, newFakeSink(nil), func(c *RelayConfig) { c.Batch, c.DrainRate = 10, 100 })
		l := r.loops[0]
		mustOnce(t, r)
		require.True(t, l.pace.draining)
		l.pace.next = time.Now().Add(time.Hour)
		pastSince(t, r)
		writeVersions(t, db, "K", 1, 1)
		writeVersions(t, db, "HELD", 2, 60)
		for rounds := 0; countStatus(t, db, StatusSuccess) < 3; rounds++ {
			require.Less(t, rounds, 10)
			require.Positive(t, mustOnce(t, r).pause, "what is held is no reason to look again at once")
		}
		require.Equal(t, StatusSuccess, entryOf(t, db, "K").Status)
	})
}
