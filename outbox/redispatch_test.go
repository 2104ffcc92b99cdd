package outbox

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// TestSlowSinkIsSentNothingTwice: while a send goes on, another relay looks for what is due and for leases that are over,
// again and again. As long as the lease holds it finds nothing, however slow the sink is (R23).
func TestSlowSinkIsSentNothingTwice(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		var due, expired atomic.Int32
		watched := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			switch {
			case strings.HasPrefix(query, "EXPLAIN"):
			case strings.Contains(query, "status = 'WAIT' AND sink = "):
				due.Add(1)
			case strings.Contains(query, "SELECT id, sink, claim_owner, reclaim_count"):
				expired.Add(1)
			}
			return nil
		}}})
		db := e.db(t)
		write(t, db, "A"+string(mode), 6)
		otherSink := newFakeSink(nil)
		cfg := testConfig(t, watched, otherSink)
		cfg.Claim, cfg.Lease, cfg.SendTimeout, cfg.ReclaimInterval = mode, time.Hour, 10*time.Minute, 2*time.Millisecond
		other := newTestRelay(t, cfg)
		began := sync.OnceFunc(func() { start(t, other) })
		sink := limitedSink{newFakeSink(nil), 2, 0}
		sink.answer = func(context.Context, []Record) error {
			began()
			d, x := due.Load(), expired.Load()
			eventually(t, func() bool { return due.Load() > d+3 && expired.Load() > x+3 }, "the other relay looks")
			return nil
		}
		cfg.DB, cfg.Sinks = db, []Sink{sink}
		r := newTestRelay(t, cfg)
		require.Equal(t, 6, mustOnce(t, r).claimed)
		require.Equal(t, []int{2, 2, 2}, sink.sizes())
		require.Equal(t, 6, countStatus(t, db, StatusSuccess))
		require.Empty(t, otherSink.all())
		require.Zero(t, testutil.ToFloat64(other.metrics.reclaimed.WithLabelValues("main")))
		require.Zero(t, totalMisses(r))
	})
}

// TestOnlyWhatItsOwnerMarkedIsPurged: a relay is frozen between send and mark, and its record is put back. The late mark
// must not make the record done, or retention would delete what another attempt has still to send (R6).
func TestOnlyWhatItsOwnerMarkedIsPurged(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "A"+string(mode), 2)
		heirSink := newFakeSink(nil)
		cfg := testConfig(t, e.db(t), heirSink)
		cfg.Claim, cfg.Retention = mode, time.Millisecond
		heir := newTestRelay(t, cfg)
		purged := func() int64 {
			t.Helper()
			n, err := heir.purgeOld(t.Context())
			require.NoError(t, err)
			return n
		}
		frozen := testConfig(t, e.db(t), newFakeSink(nil))
		frozen.Claim = mode
		frozen.Hooks.AfterSend = func() {
			expire(t, db)
			res, err := heir.reclaimOnce(t.Context())
			require.NoError(t, err)
			require.Equal(t, 2, res.reclaimed)
			age(t, db, "created_at", time.Hour, "1 = 1")
			require.Zero(t, purged(), "sent, but not by whom it belongs to now")
		}
		r := newTestRelay(t, frozen)
		mustOnce(t, r)
		require.EqualValues(t, 2, missesOf(r, "mark"))
		require.Zero(t, purged())
		require.Equal(t, 2, countStatus(t, db, StatusWait))
		untilIdle(t, heir)
		require.Len(t, heirSink.count(), 2)
		age(t, db, "sent_at", time.Hour, "1 = 1")
		require.EqualValues(t, 2, purged())
	})
}
