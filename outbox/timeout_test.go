package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

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
