package outbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

func TestNudgeIsFasterThanThePoll(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	sent := make(chan struct{}, 1)
	cfg := testConfig(t, db, newFakeSink(func(context.Context, []Record) error { sent <- struct{}{}; return nil }))
	cfg.PollMin, cfg.PollMax = time.Hour, time.Hour
	r := newTestRelay(t, cfg)
	start(t, r)
	w := newTestWriter(t, db, func(c *WriterConfig) { c.Nudge = r.Nudge })
	_, err := w.PublishInTx(t.Context(), event("A0"), insertLocal)
	require.NoError(t, err)
	select {
	case <-sent:
	case <-time.After(time.Minute):
		t.Fatal("not nudged")
	}
	for range 100 {
		r.Nudge() // never blocks
	}
}

// TestNudgeEndsThePauseOfADrain: the pause is for the backlog, and what is new does not wait for its end.
func TestNudgeEndsThePauseOfADrain(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	plain := e.db(t)
	var looks atomic.Int32
	db := e.open(t, database.Options{Hooks: database.Hooks{After: func(_ database.Op, query string) error {
		if strings.HasPrefix(query, "SELECT") && strings.Contains(query, "next_retry_time <= ") {
			looks.Add(1)
		}
		return nil
	}}})
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.PollMin, cfg.PollMax = time.Hour, time.Hour
	r := newTestRelay(t, cfg)
	r.loops[0].pace.since, r.loops[0].pace.next = "2020-01-01 00:00:00.000", time.Now().Add(time.Hour)
	start(t, r)
	eventually(t, func() bool { return looks.Load() >= 1 }, "it has looked, and waits for the time of the backlog")
	write(t, plain, "NEW", 1)
	r.Nudge()
	eventually(t, func() bool { return countStatus(t, plain, StatusSuccess) == 1 }, "nudged")
}

// TestReclaimNudges: what was reclaimed is sent at once, not at the next poll.
func TestReclaimNudges(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	plain := e.db(t)
	write(t, plain, "A", 1)
	put(t, plain, StatusSending, "gone", time.Hour)
	var looks atomic.Int32
	db := e.open(t, database.Options{Hooks: database.Hooks{After: func(_ database.Op, query string) error {
		if strings.HasPrefix(query, "SELECT") && strings.Contains(query, "next_retry_time <= ") {
			looks.Add(1)
		}
		return nil
	}}})
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.PollMin, cfg.PollMax = time.Hour, time.Hour
	start(t, caughtUp(newTestRelay(t, cfg)))
	eventually(t, func() bool { return looks.Load() == 1 }, "it has looked, and waits for the next poll")
	expire(t, plain)
	eventually(t, func() bool { return countStatus(t, plain, StatusSuccess) == 1 }, "nudged")
}

func TestPollDoublesWhileIdle(t *testing.T) {
	t.Parallel()
	p := poll{least: 50, most: 300}
	for _, c := range []struct {
		worked bool
		want   time.Duration
	}{{false, 50}, {false, 100}, {true, 50}, {false, 100}, {false, 200}, {false, 300}, {false, 300}, {true, 50}, {true, 50}} {
		require.Equal(t, c.want, p.next(c.worked))
	}
}

// TestLostRaceIsFollowedByAShortPause: another relay takes all the candidates between the look and the claim.
func TestLostRaceIsFollowedByAShortPause(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		for _, draining := range []bool{false, true} {
			loseRace(t, e, draining)
		}
	})
}

func loseRace(t *testing.T, e *engine, draining bool) {
	plain := e.db(t)
	empty(t, plain)
	write(t, plain, "A", 4)
	all := entries(t, plain)
	faster := func() {
		n, err := newStore(plain).claim(plain.Write, "other", "main", []int64{all[0].ID, all[1].ID}, time.Minute)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
	}
	var race sync.Once
	db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, _ string) error {
		if op == database.OpExec {
			race.Do(faster)
		}
		return nil
	}}})
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.Claim, cfg.Batch = ClaimConditionalUpdate, 2
	r := caughtUp(newTestRelay(t, cfg))
	if draining { // a backlog whose time has not come; these became due since
		now := time.Now()
		r.loops[0].pace.start(now)
		r.loops[0].pace.since, r.loops[0].pace.next = "2020-01-01 00:00:00.000", now.Add(time.Hour)
	}
	res := mustOnce(t, r)
	require.Zero(t, res.claimed)
	require.GreaterOrEqual(t, res.pause, time.Millisecond)
	require.Less(t, res.pause, 4*time.Millisecond)
	require.Equal(t, 2, mustOnce(t, r).claimed)
	res = mustOnce(t, r)
	require.Equal(t, draining, res.fresh)
	require.Equal(t, draining, res.pause > 0, "nothing else is due, so no race was lost")
}

// TestBatchesGrowWithABacklog up to their limit, and are small again when it is gone or a batch fails.
func TestBatchesGrowWithABacklog(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "A", 40)
	sink := newFakeSink(nil)
	cfg := testConfig(t, db, sink)
	cfg.Batch, cfg.BatchMax = 2, 10
	r := newTestRelay(t, cfg)
	untilIdle(t, r)
	require.Equal(t, []int{2, 4, 8, 10, 10, 6}, sink.sizes())
	write(t, db, "B", 30)
	for range 3 {
		mustOnce(t, r)
	}
	require.Equal(t, []int{2, 4, 8}, sink.sizes()[6:])
	sink.answer = poison("B14", func() error { return Refused(errors.New("no")) })
	mustOnce(t, r)
	require.Equal(t, 10, sink.sizes()[9])
	mustOnce(t, r)
	require.Len(t, sink.all()[len(sink.all())-1], 2)
}
