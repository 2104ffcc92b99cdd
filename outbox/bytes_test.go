package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// writeLarge commits n events with so many bytes of data each.
func writeLarge(t testing.TB, db *database.DB, prefix string, n, bytes int) {
	t.Helper()
	w := newTestWriter(t, db)
	for i := range n {
		ev := event(fmt.Sprint(prefix, i))
		ev.Data = json.RawMessage(`"` + strings.Repeat("x", bytes) + `"`)
		_, err := w.PublishInTx(t.Context(), ev, insertLocal)
		require.NoError(t, err)
	}
}

func bytesOf(rows []row) (n int) {
	for _, r := range rows {
		n += len(r.rec.Payload)
	}
	return n
}

// TestClaimIsBoundedInBytes: a grown batch of the largest events would not fit into memory. What is beyond the limit is
// not claimed, or given back at once, and a record over the limit comes alone.
func TestClaimIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		const limit = 100_000
		db := e.db(t)
		writeLarge(t, db, "A"+string(mode), 12, 30_000)
		s := newStore(db)
		take := func(owner string, q claimRequest) claim {
			q.sink, q.owner, q.lease, q.bytes = "main", owner, time.Minute, limit
			c, err := s.takeClaim(t.Context(), mode, q)
			require.NoError(t, err)
			return c
		}
		c := take("first", claimRequest{limit: 12})
		require.Len(t, c.rows, 3)
		require.LessOrEqual(t, bytesOf(c.rows), limit)
		require.True(t, c.cut)
		require.True(t, c.full)
		require.Equal(t, 12, c.found)
		require.Equal(t, 3, countStatus(t, db, StatusSending))
		require.Equal(t, 9, countStatus(t, db, StatusWait))
		rest := take("second", claimRequest{limit: 3})
		require.Len(t, rest.rows, 3)
		require.False(t, rest.cut)
		require.Equal(t, "A"+string(mode)+"3", rest.rows[0].rec.BizNo, "in their order")

		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS'").Error)
		writeLarge(t, db, "B"+string(mode), 2, 2*limit)
		c = take("third", claimRequest{limit: 2})
		require.Len(t, c.rows, 1, "one over the limit comes alone")
		require.True(t, c.cut)
	})
}

// TestLargeEventsAreRelayed: the batch fits itself to them, and all are sent once.
func TestLargeEventsAreRelayed(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		writeLarge(t, db, "L"+string(mode), 30, 10_000)
		sink := newFakeSink(nil)
		cfg := testConfig(t, db, sink)
		cfg.Claim, cfg.Batch, cfg.BatchMax, cfg.BatchBytes, cfg.Lease = mode, 20, 100, 50_000, time.Hour
		r := newTestRelay(t, cfg)
		mustOnce(t, r)
		require.Equal(t, 4, r.loops[0].batch, "what is read in vain is not read again")
		untilIdle(t, r)
		require.Equal(t, 30, countStatus(t, db, StatusSuccess))
		for subject, n := range sink.count() {
			require.Equal(t, 1, n, subject)
		}
		require.Zero(t, totalMisses(r))
	})
}

// TestClaimThatTakesTooLongIsTriedSmaller: claims of more than three records do not end in time.
func TestClaimThatTakesTooLongIsTriedSmaller(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	write(t, e.db(t), "A", 40)
	var tooLarge atomic.Bool
	db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
		if op == database.OpExec && strings.Contains(query, "SET status = 'SENDING'") && tooLarge.Load() {
			sleep(context.Background(), 150*time.Millisecond)
			return context.DeadlineExceeded
		}
		return nil
	}}})
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.Batch, cfg.BatchMax, cfg.StatementTimeout = 5, 20, 250*time.Millisecond
	r := newTestRelay(t, cfg)
	l := r.loops[0]
	l.batch = cfg.BatchMax
	eventually(t, func() bool {
		tooLarge.Store(l.batch > 3)
		_, _ = once(t, r)
		return countStatus(t, db, StatusSuccess) >= 3
	}, "a smaller claim succeeds")
}
