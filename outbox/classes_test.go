package outbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for want, errs := range map[class][]error{
		classSuccess:     {nil},
		classRefused:     {Refused(cause), fmt.Errorf("send: %w", Refused(cause)), Refused(context.DeadlineExceeded)},
		classUnreachable: {Unreachable(cause), &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, &net.OpError{Op: "read", Err: cause}},
		classTimeout:     {Timeout(cause), context.DeadlineExceeded, fmt.Errorf("x: %w", context.DeadlineExceeded), &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}},
		classError:       {cause, context.Canceled},
	} {
		for _, err := range errs {
			require.Equal(t, want, classify(err), "%v", err)
		}
	}
	require.ErrorIs(t, Refused(cause), cause)
}

func TestErrorTextFitsItsColumn(t *testing.T) {
	t.Parallel()
	require.Equal(t, "refused: a b", errorText(ReasonRefused, errors.New("a\nb")))
	long := errorText("", errors.New(strings.Repeat("ü", 5000)+"\xff"))
	require.Equal(t, maxLastError, utf8.RuneCountInString(long))
	require.True(t, utf8.ValidString(errorText("", errors.New("a\xffb"))))
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	plain := func(n int) time.Duration { return backoff(n, 5*time.Second, 10*time.Minute, 0.2, 0.5) }
	require.Equal(t, []time.Duration{5 * time.Second, 20 * time.Second, 45 * time.Second}, []time.Duration{plain(1), plain(2), plain(3)})
	require.Equal(t, 4*time.Second, backoff(1, 5*time.Second, time.Hour, 0.2, 0))
	require.InDelta(t, float64(6*time.Second), float64(backoff(1, 5*time.Second, time.Hour, 0.2, 0.999999)), float64(time.Millisecond))
	require.Equal(t, 10*time.Minute, plain(1000))
	require.Equal(t, 10*time.Minute, plain(1<<40))
	require.Equal(t, 5*time.Second, plain(0))
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := breaker{cfg: BreakerConfig{Failures: 2, OpenMin: time.Second, OpenMax: 3 * time.Second}}
	b.failure(now)
	require.Equal(t, breakerClosed, b.state(now))
	require.False(t, b.success())
	b.failure(now)
	b.failure(now)
	for _, pause := range []time.Duration{1, 2, 3, 3} {
		require.Equal(t, breakerOpen, b.state(now.Add(pause*time.Second-1)))
		now = now.Add(pause * time.Second)
		require.Equal(t, breakerHalfOpen, b.state(now))
		b.failure(now)
	}
	require.True(t, b.success())
	require.Equal(t, breakerClosed, b.state(now))
}

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

// limitedSink is a fakeSink with a limit of a batch.
type limitedSink struct {
	*fakeSink
	records, bytes int
}

func (s limitedSink) BatchLimit() (int, int) { return s.records, s.bytes }

func TestChunk(t *testing.T) {
	t.Parallel()
	rows := []row{
		{id: 1, rec: Record{Destination: "a", Payload: make([]byte, 6)}},
		{id: 2, rec: Record{Destination: "b", Payload: make([]byte, 6)}},
		{id: 3, rec: Record{Destination: "a", Payload: make([]byte, 6)}, retries: 1},
		{id: 4, rec: Record{Destination: "a", Payload: make([]byte, 4)}},
		{id: 5, rec: Record{Destination: "a", Payload: make([]byte, 1)}},
		{id: 6, rec: Record{Destination: "b", Payload: make([]byte, 50)}},
	}
	cut := func(s Sink) (out [][]int64) {
		for _, c := range chunk(rows, nil, s, func(r row) bool { return r.retries > 0 }) {
			out = append(out, ids(c))
		}
		return out
	}
	require.Equal(t, [][]int64{{1, 4, 5}, {2, 6}, {3}}, cut(newFakeSink(nil)))
	require.Equal(t, [][]int64{{1, 4}, {2}, {5}, {6}, {3}}, cut(limitedSink{newFakeSink(nil), 0, 10}))
	require.Equal(t, [][]int64{{1, 4}, {2, 6}, {5}, {3}}, cut(limitedSink{newFakeSink(nil), 2, 0}))
}

// poison makes a sink that fails for one subject, in a batch or alone.
func poison(subject string, err func() error) func(context.Context, []Record) error {
	return func(_ context.Context, batch []Record) error {
		for _, r := range batch {
			if r.BizNo == subject {
				return err()
			}
		}
		return nil
	}
}

// TestPoisonDiesAfterFourSends: three retries follow the first send, then FAIL with its reason; the others are
// unharmed (R48).
func TestPoisonDiesAfterFourSends(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "P", 1)
		sink := newFakeSink(poison("P0", func() error { return errors.New("schema registry says no") }))
		cfg := testConfig(t, db, sink)
		cfg.Claim, cfg.BackoffBase, cfg.BackoffCap = mode, 10*time.Minute, 100*time.Hour
		r := newTestRelay(t, cfg)
		for sends := 1; sends <= 4; sends++ {
			mustOnce(t, r)
			require.Equal(t, sends, sink.count()["P0"])
			got := entryOf(t, db, "P0")
			require.NotNil(t, got.FirstErrorAt)
			require.Contains(t, got.LastError, "schema registry says no")
			if sends < 4 {
				require.Equal(t, StatusWait, got.Status)
				require.Equal(t, sends, got.RetryCount)
				left := time.Until(got.NextRetryTime)
				want := time.Duration(sends*sends) * 10 * time.Minute
				require.InDelta(t, float64(want), float64(left), 0.21*float64(want))
				require.Zero(t, mustOnce(t, r).claimed, "not before it is due")
				makeDue(t, db)
			}
		}
		got := entryOf(t, db, "P0")
		require.Equal(t, StatusFail, got.Status)
		require.Equal(t, ReasonRetries, got.Reason())
		require.EqualValues(t, 1, testutil.ToFloat64(r.metrics.dead.WithLabelValues("main", ReasonRetries)))
		require.Zero(t, totalMisses(r))
	})
}

func TestPoisonHarmsNoOther(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		for name, err := range map[string]error{"error": errors.New("boom"), "refused": Refused(errors.New("too large"))} {
			db := e.db(t)
			require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
			write(t, db, "A", 45)
			sink := newFakeSink(poison("A7", func() error { return err }))
			r := newTestRelay(t, testConfig(t, db, sink))
			eventually(t, func() bool { mustOnce(t, r); return countStatus(t, db, StatusFail) == 1 }, name)
			untilIdle(t, r)
			require.Equal(t, 44, countStatus(t, db, StatusSuccess))
			for _, got := range entries(t, db) {
				if got.BizNo != "A7" {
					require.Zero(t, got.RetryCount)
				}
			}
			sends := sink.count()
			if name == "refused" {
				require.Equal(t, 2, sends["A7"], "in its batch and alone, then dead at once")
				require.Equal(t, ReasonRefused, entryOf(t, db, "A7").Reason())
			} else {
				require.Equal(t, 5, sends["A7"], "in its batch and four times alone")
			}
			for subject, n := range sends {
				require.True(t, subject == "A7" || n <= 2, "%s was sent %d times", subject, n)
			}
		}
	})
}

func TestSinkThatPanicsIsAnError(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "A", 3)
	r := newTestRelay(t, testConfig(t, db, newFakeSink(poison("A1", func() error { panic("nil map") }))))
	eventually(t, func() bool { mustOnce(t, r); return countStatus(t, db, StatusFail) == 1 }, "")
	require.Contains(t, entryOf(t, db, "A1").LastError, "sink panicked: nil map")
	require.Equal(t, 2, countStatus(t, db, StatusSuccess))
}

func TestUnreadableHeadersAreADeadLetter(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "A", 3)
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET headers = '[1' WHERE biz_no = 'A1'").Error)
	r := newTestRelay(t, testConfig(t, db, newFakeSink(nil)))
	mustOnce(t, r)
	require.Equal(t, ReasonBadHeaders, entryOf(t, db, "A1").Reason())
	require.Equal(t, 2, countStatus(t, db, StatusSuccess))
}

// TestOutageLeavesNoDeadLetters: the sink is away for far longer than the whole retry budget, by refusing
// connections or by never answering (R52).
func TestOutageLeavesNoDeadLetters(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		for name, err := range map[string]error{"unreachable": Unreachable(errors.New("connection refused")), "black hole": Timeout(errors.New("no answer"))} {
			db := e.db(t)
			require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
			write(t, db, "A", 30)
			down := true
			sink := newFakeSink(nil)
			sink.answer = func(context.Context, []Record) error {
				if down {
					return err
				}
				return nil
			}
			sink.probe = func(context.Context) error { return err }
			cfg := testConfig(t, db, probedSink{sink})
			cfg.BackoffBase = time.Millisecond // the budget is 14 ms
			cfg.Breaker = BreakerConfig{OpenMin: time.Millisecond, OpenMax: 5 * time.Millisecond}
			r := newTestRelay(t, cfg)
			for range 60 {
				res := mustOnce(t, r)
				sleep(t.Context(), res.pause)
			}
			for _, got := range entries(t, db) {
				require.Equal(t, StatusWait, got.Status, name)
				require.Zero(t, got.RetryCount, name)
			}
			require.LessOrEqual(t, len(sink.sizes()), 61, "one probe at a time")
			down = false
			eventually(t, func() bool { mustOnce(t, r); return countStatus(t, db, StatusSuccess) == 30 }, name)
			require.Zero(t, totalMisses(r))
			untilIdle(t, r)
			require.False(t, r.loops[0].pace.active, "the drain ends with the backlog")
		}
	})
}

// TestOutageBeginsInMidTraffic: what was in flight when it began spends at most one retry.
func TestOutageBeginsInMidTraffic(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	down := false
	sink := newFakeSink(nil)
	sink.answer = func(context.Context, []Record) error {
		if down {
			return Timeout(errors.New("no answer"))
		}
		return nil
	}
	cfg := testConfig(t, db, sink)
	cfg.BackoffBase = time.Millisecond
	cfg.Breaker = BreakerConfig{OpenMin: time.Millisecond, OpenMax: 2 * time.Millisecond}
	r := newTestRelay(t, cfg)
	for outage := range 3 {
		write(t, db, fmt.Sprintf("A%d-", outage), 5)
		mustOnce(t, r)
		down = true
		write(t, db, fmt.Sprintf("B%d-", outage), 20)
		for range 40 {
			sleep(t.Context(), mustOnce(t, r).pause)
		}
		for _, got := range entries(t, db) {
			require.LessOrEqual(t, got.RetryCount, 1)
		}
		down = false
		eventually(t, func() bool { mustOnce(t, r); return countStatus(t, db, StatusSuccess) == 25*(outage+1) }, "")
	}
}

// TestBreakerClaimsNothingWhileOpen counts statements of a loop whose sink is down.
func TestBreakerClaimsNothingWhileOpen(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "A", 5)
	sink := newFakeSink(func(context.Context, []Record) error { return Unreachable(errors.New("down")) })
	cfg := testConfig(t, db, sink)
	cfg.Breaker = BreakerConfig{OpenMin: time.Hour, OpenMax: time.Hour}
	r := newTestRelay(t, cfg)
	mustOnce(t, r)
	for range 10 {
		res := mustOnce(t, r)
		require.Zero(t, res.claimed)
		require.Greater(t, res.pause, 59*time.Minute)
	}
	require.Equal(t, []int{5}, sink.sizes())
	require.EqualValues(t, breakerOpen, testutil.ToFloat64(r.metrics.breaker.WithLabelValues("main")))
	// The pause is over: one probe, one record.
	r.loops[0].breaker.openUntil = time.Now()
	require.Equal(t, 1, mustOnce(t, r).claimed)
	require.Equal(t, []int{5, 1}, sink.sizes())
}

// TestTimeoutOfOneEventSpendsItsRetries: the event times out whenever it is sent, the others succeed beside it, so it
// is the event's own fault, whatever its place in the batch.
func TestTimeoutOfOneEventSpendsItsRetries(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		for _, bad := range []string{"A0", "A5", "A9"} {
			db := e.db(t)
			require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
			write(t, db, "A", 10)
			sink := newFakeSink(poison(bad, func() error { return Timeout(errors.New("no answer")) }))
			r := newTestRelay(t, testConfig(t, db, sink))
			mustOnce(t, r)
			require.Equal(t, 9, countStatus(t, db, StatusSuccess))
			require.Equal(t, 1, entryOf(t, db, bad).RetryCount)
			require.Equal(t, breakerClosed, r.loops[0].breaker.state(time.Now()))
			for n := 2; n <= 4; n++ {
				write(t, db, fmt.Sprintf("N%d-", n), 1)
				makeDue(t, db)
				mustOnce(t, r)
			}
			require.Equal(t, StatusFail, entryOf(t, db, bad).Status)
			require.Equal(t, ReasonRetries, entryOf(t, db, bad).Reason())
		}
	})
}

// TestTimeoutAloneIsTheSinksFaultUnlessItAnswersAProbe.
func TestTimeoutAloneIsTheSinksFaultUnlessItAnswersAProbe(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "P", 1)
	sink := newFakeSink(func(context.Context, []Record) error { return Timeout(errors.New("no answer")) })
	answers := false
	sink.probe = func(context.Context) error {
		if answers {
			return nil
		}
		return errors.New("no answer to the probe")
	}
	cfg := testConfig(t, db, probedSink{sink})
	cfg.Breaker = BreakerConfig{OpenMin: time.Millisecond, OpenMax: time.Millisecond}
	r := newTestRelay(t, cfg)
	for range 20 {
		sleep(t.Context(), mustOnce(t, r).pause)
	}
	require.Zero(t, entryOf(t, db, "P0").RetryCount)
	answers = true
	eventually(t, func() bool { mustOnce(t, r); return entryOf(t, db, "P0").Status == StatusFail }, "it dies, alone")
}

// TestProbeAvoidsWhatTimedOut: two events time out always; they neither keep the breaker open for the others nor
// live for ever.
func TestProbeAvoidsWhatTimedOut(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "P", 4)
		sink := newFakeSink(func(_ context.Context, batch []Record) error {
			for _, r := range batch {
				if strings.HasPrefix(r.BizNo, "P") {
					return Timeout(errors.New("no answer"))
				}
			}
			return nil
		})
		sink.probe = func(context.Context) error { return nil }
		cfg := testConfig(t, db, probedSink{sink})
		cfg.Claim, cfg.Breaker = mode, BreakerConfig{OpenMin: time.Millisecond, OpenMax: time.Millisecond}
		r := newTestRelay(t, cfg)
		mustOnce(t, r) // batch, three singles: hopeless
		require.Equal(t, []int{4, 1, 1, 1}, sink.sizes())
		require.Len(t, r.loops[0].suspects.ids, 3)
		write(t, db, "B", 10)
		rounds := 0
		eventually(t, func() bool { mustOnce(t, r); rounds++; return countStatus(t, db, StatusSuccess) == 10 }, "the others get through")
		eventually(t, func() bool { mustOnce(t, r); return countStatus(t, db, StatusFail) == 4 }, "they die")
		for _, got := range entries(t, db) {
			if strings.HasPrefix(got.BizNo, "B") {
				require.Zero(t, got.RetryCount)
			}
		}
		require.Empty(t, r.loops[0].suspects.ids)
		require.Zero(t, totalMisses(r))
	})
}

func TestSendTimeoutIsATimeout(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	write(t, db, "A", 1)
	sink := newFakeSink(func(ctx context.Context, _ []Record) error { <-ctx.Done(); return ctx.Err() })
	cfg := testConfig(t, db, sink)
	cfg.SendTimeout = 20 * time.Millisecond
	r := newTestRelay(t, cfg)
	mustOnce(t, r)
	require.EqualValues(t, 1, testutil.ToFloat64(r.metrics.attempts.WithLabelValues("main", "timeout")))
	require.Equal(t, StatusWait, entryOf(t, db, "A0").Status)
}

// TestAnswerLost: the events arrived, the answer did not. They are sent again and marked once.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		write(t, db, "A", 3)
		lost := false
		sink := newFakeSink(nil)
		sink.answer = func(context.Context, []Record) error {
			if !lost {
				lost = true
				return Timeout(errors.New("answer lost"))
			}
			return nil
		}
		r := newTestRelay(t, testConfig(t, db, sink))
		untilIdle(t, r)
		require.Equal(t, map[string]int{"A0": 2, "A1": 2, "A2": 2}, sink.count())
		require.Equal(t, 3, countStatus(t, db, StatusSuccess))
		require.Zero(t, totalMisses(r))
	})
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
