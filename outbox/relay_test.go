package outbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOneSinkDownDoesNotSlowAnother(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	hangs := newFakeSink(func(ctx context.Context, _ []Record) error { <-ctx.Done(); return ctx.Err() })
	hangs.name = "hangs"
	cfg := testConfig(t, db, newFakeSink(nil), hangs)
	cfg.SendTimeout = time.Second
	r := newTestRelay(t, cfg)
	w := newTestWriter(t, db, func(c *WriterConfig) { c.Sink = "hangs" })
	_, err := w.PublishInTx(t.Context(), event("H"), insertLocal)
	require.NoError(t, err)
	write(t, db, "A", 100)
	start(t, r)
	eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 100 }, "")
}

func TestLifeCycle(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	r := newTestRelay(t, testConfig(t, db, newFakeSink(nil)))
	require.NoError(t, r.Stop(t.Context()))
	require.ErrorIs(t, r.Start(), ErrStopped)

	r = newTestRelay(t, testConfig(t, db, newFakeSink(nil)))
	require.NoError(t, r.Start())
	require.ErrorIs(t, r.Start(), ErrStarted)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { require.NoError(t, r.Stop(context.Background())) })
	}
	wg.Wait()
	require.NoError(t, r.Stop(t.Context()))
	require.ErrorIs(t, r.Start(), ErrStopped)
}

// TestStopFinishesWhatIsSentAndReleasesTheRest (R18).
func TestStopFinishesWhatIsSentAndReleasesTheRest(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "A"+string(mode), 10)
		sending, proceed := make(chan struct{}), make(chan struct{})
		sink := limitedSink{newFakeSink(nil), 3, 0}
		sink.answer = func(context.Context, []Record) error {
			close(sending)
			<-proceed
			return nil
		}
		cfg := testConfig(t, e.db(t), sink)
		cfg.Claim = mode
		r := newTestRelay(t, cfg)
		require.NoError(t, r.Start())
		<-sending
		stopped := make(chan error, 1)
		go func() { stopped <- r.Stop(context.Background()) }()
		eventually(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.stopped }, "")
		close(proceed)
		require.NoError(t, <-stopped)
		require.Equal(t, []int{3}, sink.sizes())
		require.Equal(t, 3, countStatus(t, db, StatusSuccess))
		require.Equal(t, 7, countStatus(t, db, StatusWait))
		require.Zero(t, totalMisses(r))
	})
}

// TestStopCutOff: the sends do not end in time. Their events may be on the way, so their leases are left to run out;
// what was not handed over is released.
func TestStopCutOff(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		write(t, db, "A", 10)
		sending := make(chan struct{})
		sink := limitedSink{newFakeSink(nil), 3, 0}
		sink.answer = func(ctx context.Context, _ []Record) error {
			close(sending)
			<-ctx.Done()
			return ctx.Err()
		}
		cfg := testConfig(t, e.db(t), sink)
		cfg.Lease, cfg.SendTimeout = time.Minute, 20*time.Second
		r := newTestRelay(t, cfg)
		require.NoError(t, r.Start())
		<-sending
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("shutdown timeout"))
		require.ErrorContains(t, r.Stop(ctx), "shutdown timeout")
		<-r.done // Stop waits for a moment only
		require.Equal(t, 3, countStatus(t, db, StatusSending))
		require.Equal(t, 7, countStatus(t, db, StatusWait))
	})
}
