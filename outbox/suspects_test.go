package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// muteFor is a sink that answers connection probes, and every event but those whose subject begins with prefix.
func muteFor(prefix string) probedSink {
	sink := newFakeSink(func(_ context.Context, batch []Record) error {
		for _, r := range batch {
			if strings.HasPrefix(r.BizNo, prefix) {
				return Timeout(errors.New("no answer"))
			}
		}
		return nil
	})
	sink.probe = func(context.Context) error { return nil }
	return probedSink{sink}
}

func TestSuspectsAreBounded(t *testing.T) {
	t.Parallel()
	var s suspects
	for id := range int64(maxSuspects + 2) {
		s.add(id)
	}
	require.Equal(t, maxSuspects, s.len())
	require.False(t, s.has(1), "the oldest go")
	require.EqualValues(t, 2, s.ids[0])
	s.add(2)
	require.EqualValues(t, 3, s.ids[0], "suspected again, so it is the newest")
	s.drop(3, 4, 1000)
	require.EqualValues(t, 5, s.ids[0])
	require.Equal(t, maxSuspects-2, s.len())
}

// untilThrough runs rounds until cond, and returns how long they would have taken with sends that take 200 ms to time
// out. The breaker's pauses are not waited for.
func untilThrough(t *testing.T, r *Relay, cond func() bool) (took time.Duration) {
	t.Helper()
	l := r.loops[0]
	timeouts := func() (n int) {
		for _, batch := range l.sink.(probedSink).all() {
			if slices.ContainsFunc(batch, func(r Record) bool { return strings.HasPrefix(r.BizNo, "P") }) {
				n++
			}
		}
		return n
	}
	before := timeouts()
	eventually(t, func() bool {
		took += mustOnce(t, r).pause
		if !l.breaker.openUntil.IsZero() {
			l.breaker.openUntil = time.Now()
		}
		return cond()
	}, "")
	return took + time.Duration(timeouts()-before)*200*time.Millisecond
}

// TestPoisonAtTheHeadLetsOthersThrough: however many records always time out, with the default breaker, what was
// written after them arrives before long.
func TestPoisonAtTheHeadLetsOthersThrough(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for _, c := range []struct {
			poison int
			within time.Duration
		}{{30, 15 * time.Second}, {maxSuspects + 30, 2 * time.Minute}} {
			if raceDetector && c.poison > maxSuspects {
				continue // the same over and over, and slow
			}
			db := e.db(t)
			empty(t, db)
			write(t, db, "P", c.poison)
			write(t, db, "B", 100)
			cfg := testConfig(t, db, muteFor("P"))
			cfg.Claim, cfg.Breaker = mode, BreakerConfig{}
			r := newTestRelay(t, cfg)
			require.Less(t, untilThrough(t, r, func() bool { return countStatus(t, db, StatusSuccess) == 100 }), c.within)
			require.LessOrEqual(t, r.loops[0].suspects.len(), maxSuspects)
			require.Zero(t, totalMisses(r))
		}
	})
}

// TestPoisonDiesBesideOthers: records that always time out, more of them than one batch.
func TestPoisonDiesBesideOthers(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "P", 22)
	r := newTestRelay(t, testConfig(t, db, muteFor("P")))
	n := 0
	untilThrough(t, r, func() bool {
		makeDue(t, db)
		if n++; n%5 == 0 {
			write(t, db, fmt.Sprintf("B%d-", n), 2)
		}
		return countStatus(t, db, StatusFail) == 22
	})
	untilIdle(t, r)
	require.Equal(t, n/5*2, countStatus(t, db, StatusSuccess))
	require.Empty(t, r.loops[0].suspects.ids)
	require.Zero(t, totalMisses(r))
}

// TestFullOfStaleSuspects: the records that it remembers are long gone, and the head of the queue times out.
func TestFullOfStaleSuspects(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "P", 4)
	write(t, db, "B", 10)
	r := newTestRelay(t, testConfig(t, db, muteFor("P")))
	for id := range int64(maxSuspects) {
		r.loops[0].suspects.add(1000000 + id)
	}
	untilThrough(t, r, func() bool { return countStatus(t, db, StatusSuccess) == 10 })
	untilThrough(t, r, func() bool { makeDue(t, db); return countStatus(t, db, StatusFail) == 4 })
	require.Empty(t, r.loops[0].suspects.ids)
}

// TestSuspectsSentByAnotherRelayAreForgotten: an outage made suspects, another relay has sent them since.
func TestSuspectsSentByAnotherRelayAreForgotten(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	down := true
	sink := newFakeSink(func(context.Context, []Record) error {
		if down {
			return Unreachable(errors.New("connection refused"))
		}
		return nil
	})
	cfg := testConfig(t, db, sink)
	r := newTestRelay(t, cfg)
	write(t, db, "A", 20)
	for range 12 {
		mustOnce(t, r)
		r.loops[0].breaker.openUntil = time.Now()
	}
	require.Equal(t, 11, r.loops[0].suspects.len())
	cfg.Sinks = []Sink{newFakeSink(nil)}
	untilIdle(t, newTestRelay(t, cfg))
	down = false
	write(t, db, "B", 1)
	mustOnce(t, r)
	require.Equal(t, 21, countStatus(t, db, StatusSuccess))
	mustOnce(t, r)
	require.Empty(t, r.loops[0].suspects.ids)
}

// TestSuspectsAreTriedInTurn: after the outage they are sent one at a time between the batches, although others are
// due all the time, and each is alone in its send.
func TestSuspectsAreTriedInTurn(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "A"+string(mode), 50)
		sink := newFakeSink(nil)
		cfg := testConfig(t, db, sink)
		cfg.Claim, cfg.Batch = mode, 10
		r := caughtUp(newTestRelay(t, cfg))
		for _, row := range entries(t, db)[:3] {
			r.loops[0].suspects.add(row.ID)
		}
		for range 8 {
			mustOnce(t, r)
		}
		require.Equal(t, []int{10, 1, 10, 1, 10, 1, 10, 7}, sink.sizes())
		require.Equal(t, 50, countStatus(t, db, StatusSuccess))
		require.Empty(t, r.loops[0].suspects.ids)
	})
}

// TestProbeNeverRepeatsARowWhileAnotherIsDue, not even when all of them are suspect.
func TestProbeNeverRepeatsARowWhileAnotherIsDue(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for _, err := range []error{Timeout(errors.New("no answer")), Unreachable(errors.New("connection refused"))} {
			db := e.db(t)
			empty(t, db)
			write(t, db, "A", 3)
			sink := newFakeSink(func(context.Context, []Record) error { return err })
			cfg := testConfig(t, db, sink)
			cfg.Claim = mode
			r := newTestRelay(t, cfg)
			for range 10 {
				mustOnce(t, r)
				r.loops[0].breaker.openUntil = time.Now()
			}
			last := ""
			for i, sent := range sink.all() {
				if len(sent) == 1 && i > 3 {
					require.NotEqual(t, last, sent[0].BizNo)
					last = sent[0].BizNo
				}
			}
		}
	})
}

// TestSuspectThatFailsInItsTurnIsTheNewest, so that the probe that follows takes another.
func TestSuspectThatFailsInItsTurnIsTheNewest(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "A", 2)
	sink := newFakeSink(func(context.Context, []Record) error { return Unreachable(errors.New("connection refused")) })
	r := newTestRelay(t, testConfig(t, db, sink))
	for _, row := range entries(t, db) {
		r.loops[0].suspects.add(row.ID)
	}
	mustOnce(t, r)
	r.loops[0].breaker.openUntil = time.Now()
	mustOnce(t, r)
	require.Equal(t, map[string]int{"A0": 1, "A1": 1}, sink.count())
}

func TestOnlyDifferentRecordsMakeASilence(t *testing.T) {
	t.Parallel()
	var l loop
	for _, id := range []int64{1, 1, 1, 2, 1, 2} {
		require.False(t, l.noteSilence(id))
	}
	require.True(t, l.noteSilence(3))
	require.True(t, l.noteSilence(3))
	l.reached(time.Now())
	require.False(t, l.noteSilence(4))
}

// TestAloneMeansThatNoOtherIsDue: neither one that is claimed alone, nor one that another relay takes, nor a suspect.
func TestAloneMeansThatNoOtherIsDue(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		cfg := testConfig(t, db, muteFor("A"))
		cfg.Claim = mode
		claimed := func(probe bool, change func(l *loop)) bool {
			empty(t, db)
			write(t, db, "A", 3)
			l := newTestRelay(t, cfg).loops[0]
			change(l)
			turn, err := l.nextTurn(t.Context(), time.Now(), probe)
			require.NoError(t, err)
			c, alone, err := l.claim(t.Context(), turn)
			require.NoError(t, err)
			require.NotEmpty(t, c.rows)
			return alone
		}
		require.False(t, claimed(false, func(*loop) {}))
		require.False(t, claimed(true, func(*loop) {}), "one is taken, and two are left")
		loners := func(*loop) { require.NoError(t, db.Write.Exec("UPDATE t_event_record SET reclaim_count = 2").Error) }
		require.False(t, claimed(false, loners))
		gone := func(n int) {
			require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS' WHERE biz_no IN ?", []string{"A1", "A2"}[:n]).Error)
		}
		require.True(t, claimed(false, func(*loop) { gone(2) }))
		begun := func(l *loop) { // the drain, before any of these was written
			l.pace.since = "2020-01-01 00:00:00.000"
		}
		require.False(t, claimed(false, begun))
		require.True(t, claimed(false, func(l *loop) { gone(2); begun(l) }), "the backlog is empty, and one is due besides")
		last := func(l *loop) { // of the backlog
			require.NoError(t, db.Write.Exec("UPDATE t_event_record SET next_retry_time = '2020-01-01 00:00:00.000' WHERE biz_no = 'A0'").Error)
			begun(l)
		}
		require.False(t, claimed(false, last), "others became due since")
		require.True(t, claimed(false, func(l *loop) { gone(2); last(l) }))
		suspect := func(subjects ...string) func(*loop) {
			return func(l *loop) {
				for _, s := range subjects {
					l.suspects.add(entryOf(t, db, s).ID)
				}
			}
		}
		require.False(t, claimed(false, suspect("A1", "A2")), "a suspect is due too")
		require.False(t, claimed(true, suspect("A1", "A2")))
		require.False(t, claimed(false, suspect("A0", "A1", "A2")))
		require.True(t, claimed(true, suspect("A0", "A1", "A2")), "nothing but suspects is due")
		require.True(t, claimed(false, func(l *loop) { gone(2); suspect("A0")(l) }))
	})
}

// TestTimeoutOfTheOnlyRecordIsJudgedAtOnce, and that of one among others is not.
func TestTimeoutOfTheOnlyRecordIsJudgedAtOnce(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "P", 1)
	r := newTestRelay(t, testConfig(t, db, muteFor("P")))
	mustOnce(t, r)
	require.Equal(t, 1, entryOf(t, db, "P0").RetryCount)
	empty(t, db)
	write(t, db, "P", 2)
	r = newTestRelay(t, testConfig(t, db, muteFor("P")))
	mustOnce(t, r)
	require.Zero(t, entryOf(t, db, "P0").RetryCount)
	require.Equal(t, breakerOpen, r.loops[0].breaker.state(r.loops[0].breaker.openUntil.Add(-1)))
}

// empty empties both tables.
func empty(t *testing.T, db *database.DB) {
	t.Helper()
	require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
	require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
}

// TestFreshTurnTakesNoSuspect along with others, and its failure is followed by a pause that no nudge ends.
func TestFreshTurnTakesNoSuspect(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		empty(t, db)
		write(t, db, "A", 3)
		sink := newFakeSink(func(context.Context, []Record) error { return Unreachable(errors.New("busy")) })
		cfg := testConfig(t, db, sink)
		cfg.Claim, cfg.Breaker.Failures = mode, 2
		r := newTestRelay(t, cfg)
		l := r.loops[0]
		l.suspects.add(entryOf(t, db, "A0").ID)
		l.pace.since, l.pace.next = "2020-01-01 00:00:00.000", time.Now().Add(time.Hour)
		res := mustOnce(t, r)
		require.Equal(t, map[string]int{"A1": 1, "A2": 1}, sink.count())
		require.Equal(t, cfg.PollMin, res.pause)
		require.False(t, res.fresh)
	})
}
