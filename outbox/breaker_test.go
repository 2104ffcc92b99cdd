package outbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

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
