package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// TestDatabaseRestartsInMidBatch: the server goes away while a batch is with the sink and comes back before its lease
// is over. What was sent is marked then and sent no second time, and the relay goes on with the rest.
func TestDatabaseRestartsInMidBatch(t *testing.T) {
	t.Parallel()
	server := enginetest.OwnMySQL(t)
	dsn := server.NewSchema()
	e := &engine{name: "mysql", open: func(t testing.TB, o database.Options) *database.DB {
		db, err := database.OpenMySQL(dsn, o)
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}}
	e.migrate(t)
	plain := e.db(t)
	write(t, plain, "A", 30)

	sending, goOn := make(chan struct{}), make(chan struct{})
	restart := sync.OnceFunc(func() { close(sending); <-goOn })
	sink := newFakeSink(func(context.Context, []Record) error { restart(); return nil })
	cfg := testConfig(t, e.db(t), sink)
	cfg.Lease, cfg.SendTimeout = 5*time.Minute, time.Minute
	r := newTestRelay(t, cfg)
	start(t, r)
	<-sending
	server.Kill()
	close(goOn)
	server.Start()
	eventually(t, func() bool {
		var n int64
		err := plain.Read.Raw("SELECT COUNT(*) FROM t_event_record WHERE status = 'SUCCESS'").Scan(&n).Error
		return err == nil && n == 30
	}, "everything is marked")
	for subject, n := range sink.count() {
		require.Equal(t, 1, n, subject)
	}
	require.Zero(t, totalMisses(r))
}

// TestPartialBatchFailure: the far end stored part of a batch and says that it failed. Every event arrives, those that
// were stored twice at most, and none spends a retry for it.
func TestPartialBatchFailure(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for name, err := range map[string]error{
			"error": errors.New("some were not stored"), "timeout": Timeout(errors.New("no answer")), "unreachable": Unreachable(errors.New("connection lost")),
		} {
			db := e.db(t)
			require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
			write(t, db, "A", 10)
			stored := map[string]int{}
			failed := false
			sink := newFakeSink(func(_ context.Context, batch []Record) error {
				for i, r := range batch {
					if !failed && i == len(batch)/2 {
						failed = true
						return err
					}
					stored[r.BizNo]++
				}
				return nil
			})
			cfg := testConfig(t, db, sink)
			cfg.Claim = mode
			r := newTestRelay(t, cfg)
			eventually(t, func() bool { sleep(t.Context(), mustOnce(t, r).pause); return countStatus(t, db, StatusSuccess) == 10 }, name)
			require.Len(t, stored, 10, name)
			for subject, n := range stored {
				require.LessOrEqual(t, n, 2, subject)
			}
			for _, got := range entries(t, db) {
				require.Zero(t, got.RetryCount, name)
			}
			require.Zero(t, totalMisses(r))
		}
	})
}

// TestBlackHoleBesideAHealthySink: one sink is a black hole for the whole test; the other's events are all sent, none
// of the first is a dead letter, and nothing of it is stuck when it comes back.
func TestBlackHoleBesideAHealthySink(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		var mu sync.Mutex
		swallows := true
		hole := newFakeSink(func(ctx context.Context, _ []Record) error {
			mu.Lock()
			silent := swallows
			mu.Unlock()
			if silent {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		hole.name = "hole"
		hole.probe = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		cfg := testConfig(t, e.db(t), newFakeSink(nil), probedSink{hole})
		cfg.SendTimeout, cfg.BackoffBase = 20*time.Millisecond, time.Millisecond
		r := newTestRelay(t, cfg)
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Sink = "hole" })
		for i := range 60 {
			_, err := w.PublishInTx(t.Context(), event(fmt.Sprint("H", i)), insertLocal)
			require.NoError(t, err)
		}
		write(t, db, "A", 100)
		start(t, r)
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 100 && len(hole.all()) > 20 }, "the healthy sink goes on")
		require.Zero(t, countStatus(t, db, StatusFail))
		mu.Lock()
		swallows = false
		mu.Unlock()
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 160 }, "the other's are sent too")
		require.Zero(t, totalMisses(r))
	})
}
