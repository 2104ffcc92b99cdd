package rocketmq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Restarts come further and further apart, and at once again after a calm.
func TestPacer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var p pacer
	require.Zero(t, p.next(now))
	at := now
	for _, gap := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute} {
		require.Equal(t, gap, p.next(at))
		at = at.Add(gap)
	}
	require.Equal(t, restartGapMax-time.Minute, p.next(at.Add(time.Minute)), "counted from the restart before")
	at = at.Add(restartGapMax)
	require.Zero(t, p.next(at.Add(restartGapMax)), "long enough ago")
	at = at.Add(restartGapMax)
	require.Zero(t, p.next(at.Add(restartCalm)))
	require.Equal(t, restartGapMin, p.next(at.Add(restartCalm)), "it begins anew")
}
