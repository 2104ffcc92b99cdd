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
		cfg.Claim, cfg.BackoffBase, cfg.BackoffCap = mode, 10*time.Hour, 1000*time.Hour
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
				want := time.Duration(sends*sends) * 10 * time.Hour
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
			sleep(t.Context(), mustOnce(t, r).pause)
			for range 59 {
				before := len(sink.sizes())
				sleep(t.Context(), mustOnce(t, r).pause)
				require.LessOrEqual(t, len(sink.sizes())-before, 1, "one probe at a time")
			}
			for _, got := range entries(t, db) {
				require.Equal(t, StatusWait, got.Status, name)
				require.Zero(t, got.RetryCount, name)
			}
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
