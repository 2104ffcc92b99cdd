package outbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

func missesOf(r *Relay, op string) float64 {
	return testutil.ToFloat64(r.metrics.misses.WithLabelValues("main", op))
}

func totalMisses(r *Relay) (n float64) {
	for _, op := range []string{"renew", "mark", "retry", "put-off", "fail", "release"} {
		n += missesOf(r, op)
	}
	return n
}

// TestSlowBatchIsRenewed: every send takes most of what a lease leaves, the batch many leases; no row is sent after
// its lease, and no other relay gets one (R16). The time passes by word to the lease and to the database alone, so that no
// machine is too slow for it.
func TestSlowBatchIsRenewed(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "A", 12)
		sink := newFakeSink(nil)
		cfg := testConfig(t, db, sink)
		cfg.Claim, cfg.Lease, cfg.SendTimeout = mode, time.Hour, 20*time.Minute
		r := caughtUp(newTestRelay(t, cfg))
		l := r.loops[0]
		watcher := newTestRelay(t, testConfig(t, e.db(t), newFakeSink(nil)))
		c, _, err := l.claim(t.Context(), turn{limit: 12})
		require.NoError(t, err)
		rd := &round{lease: l.newLease(c)}
		pass := func(d time.Duration) {
			rd.lease.mu.Lock()
			defer rd.lease.mu.Unlock()
			rd.lease.extend(time.Now().Add(-d))
			_, err := l.store.exec(t.Context(), "UPDATE t_event_record SET lease_until = {now+}", db.Dialect.Offset(cfg.Lease-d))
			require.NoError(t, err)
		}
		sink.answer = func(_ context.Context, batch []Record) error {
			var left float64
			require.NoError(t, db.Read.Raw(leaseLeft(db), entryOf(t, db, batch[0].BizNo).ID).Scan(&left).Error)
			require.Greater(t, left, cfg.SendTimeout.Seconds(), "sent after its lease")
			pass(55 * time.Minute)
			res, err := watcher.reclaimOnce(t.Context())
			require.NoError(t, err)
			require.Zero(t, res)
			require.Zero(t, mustOnce(t, watcher).claimed)
			return nil
		}
		l.sendSingles(t.Context(), t.Context(), rd, c.rows)
		require.Empty(t, rd.errs)
		require.Equal(t, 12, countStatus(t, db, StatusSuccess))
		require.Len(t, sink.all(), 12)
		require.Zero(t, totalMisses(r))
	})
}

func leaseLeft(db *database.DB) string {
	if db.Dialect == database.MySQL {
		return "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), lease_until) / 1e6 FROM t_event_record WHERE id = ?"
	}
	return "SELECT (julianday(lease_until) - julianday('now')) * 86400.0 FROM t_event_record WHERE id = ?"
}

// TestTailIsGivenBack: renewals fail, so the lease gets short in mid-batch: the tail is released unsent (R16).
func TestTailIsGivenBack(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		plain := e.db(t)
		write(t, plain, "A", 10)
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
			if strings.Contains(query, "SET lease_until =") {
				return errInjected
			}
			return nil
		}}})
		sink := newFakeSink(nil)
		cfg := testConfig(t, db, sink)
		cfg.Lease = time.Hour
		r := newTestRelay(t, cfg)
		sent := 0
		sink.answer = func(_ context.Context, batch []Record) error {
			if len(batch) > 1 {
				return errors.New("one by one, please")
			}
			if sent++; sent == 4 {
				r.loops[0].cfg.SendTimeout = cfg.Lease // so what is left is less than another send may take
			}
			return nil
		}
		mustOnce(t, r)
		require.Equal(t, 4, countStatus(t, plain, StatusSuccess))
		require.Equal(t, 6, countStatus(t, plain, StatusWait), "the tail waits, nothing hangs in SENDING")
		for _, got := range entries(t, plain) {
			require.Zero(t, got.RetryCount)
			require.Zero(t, got.ReclaimCount)
		}
		require.Zero(t, totalMisses(r))
	})
}

// TestFrozenRelayOverwritesNothing: a send outlasts the lease (a stopped process looks like that); meanwhile another
// relay sends the row. What the first writes then finds no row, and is counted (R15, R17).
func TestFrozenRelayOverwritesNothing(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "A", 2)
		frozen, thaw := make(chan struct{}), make(chan struct{})
		sink := newFakeSink(func(context.Context, []Record) error { // ignores ctx
			close(frozen)
			<-thaw
			return nil
		})
		cfg := testConfig(t, db, sink)
		cfg.Claim, cfg.Lease, cfg.SendTimeout, cfg.StatementTimeout = mode, 300*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond
		r := newTestRelay(t, cfg)
		r.loops[0].cfg.StatementTimeout = 20 * time.Second // it is the send alone that takes too long
		ended := make(chan error, 1)
		go func() {
			var err error
			for len(sink.all()) == 0 && t.Context().Err() == nil { // a claim that took too long is given back
				_, err = once(t, r)
			}
			ended <- err
		}()
		<-frozen

		cfg2 := testConfig(t, e.db(t), newFakeSink(nil))
		cfg2.Claim, cfg2.Instance = mode, "second"
		start(t, newTestRelay(t, cfg2))
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 2 }, "the lease of a send that never ends is not renewed for ever")
		want := entries(t, db)
		close(thaw)
		require.NoError(t, <-ended)
		require.Equal(t, want, entries(t, db))
		require.Contains(t, want[0].ClaimOwner, "second-")
		require.EqualValues(t, 2, missesOf(r, "mark"))
	})
}

// TestLateRenewalDoesNotReviveARelease: the renewal's statement is held up until the row was released (R17).
func TestLateRenewalDoesNotReviveARelease(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		plain := e.db(t)
		write(t, plain, "A", 1)
		var id int64
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
			if strings.Contains(query, "SET lease_until =") {
				n, err := newStore(plain).release(context.Background(), "me", []int64{id})
				require.NoError(t, err)
				require.EqualValues(t, 1, n)
			}
			return nil
		}}})
		s := newStore(db)
		c, err := s.takeClaim(t.Context(), ClaimConditionalUpdate, claimRequest{sink: "main", owner: "me", limit: 1, lease: time.Minute})
		require.NoError(t, err)
		id = c.rows[0].id
		missed := 0
		l := &lease{store: s, term: time.Minute, margin: time.Second, stmt: 20 * time.Second, miss: func(_ string, n int) { missed += n }}
		l.start(c)
		require.NoError(t, l.renew(t.Context()))
		require.Equal(t, 1, missed)
		require.Empty(t, l.begin(c.rows, time.Second), "nothing is held, so nothing is sent")
		require.Equal(t, StatusWait, entryOf(t, plain, "A0").Status)
	})
}

func TestLeaseIsJudgedFromBeforeTheClaim(t *testing.T) {
	t.Parallel()
	l := &lease{term: time.Hour, margin: 5 * time.Minute}
	l.start(claim{since: time.Now().Add(-50 * time.Minute)})
	require.True(t, l.covers(4*time.Minute))
	require.False(t, l.covers(6*time.Minute))
	// The wall clock has jumped ahead, or the machine slept: the monotonic clock alone would not notice.
	l.untilWall = l.untilWall.Add(-time.Hour)
	require.False(t, l.covers(0))
	// It was set back: the monotonic clock goes on.
	l.start(claim{since: time.Now().Add(-2 * time.Hour)})
	l.untilWall = l.untilWall.Add(4 * time.Hour)
	require.False(t, l.covers(0))
}

// TestTermCountsFromBeforeItsStatement: how long the statement takes is taken off the lease, of a claim and of a renewal.
func TestTermCountsFromBeforeItsStatement(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		write(t, e.db(t), "A"+string(mode), 1)
		var ran time.Time // when the statement that writes the lease ran
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if strings.Contains(query, "lease_until = ") {
				ran = time.Now()
			}
			return nil
		}}})
		s := newStore(db)
		c, err := s.takeClaim(t.Context(), mode, claimRequest{sink: "main", owner: "me", limit: 1, lease: time.Minute})
		require.NoError(t, err)
		require.Len(t, c.rows, 1)
		require.False(t, c.since.After(ran))
		l := &lease{store: s, term: time.Minute, margin: time.Second, stmt: 20 * time.Second}
		l.start(c)
		require.False(t, l.until.After(ran.Add(59*time.Second)))
		require.NoError(t, l.renew(t.Context()))
		require.False(t, l.until.After(ran.Add(59*time.Second)))
		require.True(t, l.until.After(c.since.Add(59*time.Second)))
	})
}

// TestNoSendBeginsAfterItsLease: a renewal that gets no answer keeps the lease locked until it is over.
func TestNoSendBeginsAfterItsLease(t *testing.T) {
	t.Parallel()
	rows := []row{{id: 1}, {id: 2}}
	l := &lease{term: time.Minute, margin: time.Second}
	l.start(claim{since: time.Now(), rows: rows})
	require.Len(t, l.begin(rows, time.Second), 2)
	require.False(t, l.renewUntil.IsZero())
	l.end()
	require.True(t, l.covers(time.Second))
	l.mu.Lock() // by the renewal
	began := make(chan []row)
	go func() { began <- l.begin(rows, time.Second) }()
	l.extend(time.Now().Add(-59 * time.Second))
	l.mu.Unlock()
	require.Empty(t, <-began)
	require.True(t, l.renewUntil.IsZero(), "nothing is being sent, so nothing keeps the lease from being renewed")
}

// TestLeaseIsKeptWhileItsRowsAreWorkedOn: between a send and its write-back more than a lease passes, and another
// relay looks for leases that are over all the time. The lease is long enough for a pause of the machine between two
// renewals.
func TestLeaseIsKeptWhileItsRowsAreWorkedOn(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		var renewals atomic.Int32
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if strings.Contains(query, "SET lease_until") {
				renewals.Add(1)
			}
			return nil
		}}})
		write(t, db, "A"+string(mode), 3)
		cfg := testConfig(t, db, newFakeSink(nil))
		cfg.Claim, cfg.Lease, cfg.SendTimeout, cfg.StatementTimeout = mode, 18*time.Second, 6*time.Second, 9*time.Second
		watcher := newTestRelay(t, testConfig(t, e.db(t), newFakeSink(nil)))
		cfg.Hooks.AfterSend = func() {
			for end := time.Now().Add(cfg.Lease + time.Second); time.Now().Before(end); sleep(t.Context(), 20*time.Millisecond) {
				res, err := watcher.reclaimOnce(t.Context())
				require.NoError(t, err)
				require.Zero(t, res)
			}
		}
		r := newTestRelay(t, cfg)
		r.loops[0].cfg.StatementTimeout = 20 * time.Second // a statement that is late is no renewal that fails
		began := time.Now()
		require.Equal(t, 3, mustOnce(t, r).claimed)
		require.Equal(t, 3, countStatus(t, db, StatusSuccess))
		require.Zero(t, totalMisses(r))
		require.Less(t, renewals.Load(), int32(time.Since(began)/time.Second), "a third of the term lies between two renewals")
	})
}

// TestDoubtfulClaimIsGivenBack: the claim's answer was lost, and its lease is long. The rows wait again at the next
// round, or when the relay stops.
func TestDoubtfulClaimIsGivenBack(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		plain := e.db(t)
		write(t, plain, "A"+string(mode), 3)
		lost := map[ClaimMode][]func(op database.Op, query string) bool{
			ClaimSkipLocked: {func(op database.Op, _ string) bool { return op == database.OpCommit }},
			ClaimConditionalUpdate: {
				func(_ database.Op, query string) bool { return strings.Contains(query, "SET status = 'SENDING'") },
				func(_ database.Op, query string) bool { return strings.Contains(query, "AND claim_owner = ") },
			},
		}
		for _, loses := range lost[mode] {
			armed := false
			db := e.open(t, database.Options{Hooks: database.Hooks{After: func(op database.Op, query string) error {
				if armed && loses(op, query) {
					armed = false
					return errInjected
				}
				return nil
			}}})
			cfg := testConfig(t, db, newFakeSink(nil))
			cfg.Claim, cfg.Lease = mode, time.Hour
			r := caughtUp(newTestRelay(t, cfg))
			loseClaim := func() {
				armed = true
				_, err := once(t, r)
				require.ErrorIs(t, err, errInjected)
				require.Equal(t, 3, countStatus(t, plain, StatusSending))
			}
			loseClaim()
			stopped, cancel := context.WithCancel(t.Context())
			cancel()
			r.loops[0].run(stopped, t.Context())
			require.Equal(t, 3, countStatus(t, plain, StatusWait), "given back at the end")
			loseClaim()
			require.Equal(t, 3, mustOnce(t, r).claimed, "given back, and claimed anew")
			require.Equal(t, 3, countStatus(t, plain, StatusSuccess))
			require.Zero(t, totalMisses(r))
			require.NoError(t, plain.Write.Exec("UPDATE t_event_record SET status = 'WAIT'").Error)
		}
	})
}

// TestWriteBackWithLostAnswer: the mark took effect but its answer was lost; the repetition finds nothing to change
// and knows that it was its own doing.
func TestWriteBackWithLostAnswer(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		for name, sends := range map[string]func(context.Context, []Record) error{
			"SET status = 'SUCCESS'": nil,
			"SET status = 'FAIL'":    func(context.Context, []Record) error { return Refused(errors.New("no")) },
			"retry_count = ":         func(context.Context, []Record) error { return errors.New("no") },
			"last_error = ":          func(context.Context, []Record) error { return Unreachable(errors.New("no")) },
		} {
			plain := e.db(t)
			require.NoError(t, plain.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, plain.Write.Exec("DELETE FROM t_local").Error)
			write(t, plain, "A", 1)
			var lost atomic.Int32
			db := e.open(t, database.Options{Hooks: database.Hooks{After: func(op database.Op, query string) error {
				if op == database.OpExec && strings.Contains(query, name) && lost.Add(1) == 1 {
					return errInjected
				}
				return nil
			}}})
			r := newTestRelay(t, testConfig(t, db, newFakeSink(sends)))
			mustOnce(t, r)
			require.EqualValues(t, 2, lost.Load(), name)
			require.Zero(t, totalMisses(r), name)
			require.NotEqual(t, StatusSending, entryOf(t, plain, "A0").Status)
		}
	})
}

// TestRealMissIsCountedAfterAnError: the first try failed and the row was lost before the second.
func TestRealMissIsCountedAfterAnError(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	plain := e.db(t)
	write(t, plain, "A", 1)
	var once1 sync.Once
	db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) (err error) {
		if op == database.OpExec && strings.Contains(query, "SET status = 'SUCCESS'") {
			once1.Do(func() {
				require.NoError(t, plain.Write.Exec("UPDATE t_event_record SET claim_owner = 'thief'").Error)
				err = errInjected
			})
		}
		return err
	}}})
	r := newTestRelay(t, testConfig(t, db, newFakeSink(nil)))
	mustOnce(t, r)
	require.EqualValues(t, 1, missesOf(r, "mark"))
	require.Equal(t, "thief", entryOf(t, plain, "A0").ClaimOwner)
}

// TestNoTransactionIsOpenWhileSending (R40).
func TestNoTransactionIsOpenWhileSending(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		var open atomic.Int32
		db := e.open(t, database.Options{Hooks: database.Hooks{After: func(op database.Op, _ string) error {
			switch op {
			case database.OpBegin:
				open.Add(1)
			case database.OpCommit, database.OpRollback:
				open.Add(-1)
			}
			return nil
		}}})
		write(t, e.db(t), "A", 3)
		sink := newFakeSink(func(context.Context, []Record) error {
			require.Zero(t, open.Load())
			return nil
		})
		cfg := testConfig(t, db, sink)
		cfg.Claim = mode
		mustOnce(t, newTestRelay(t, cfg))
		require.Equal(t, []int{3}, sink.sizes())
	})
}
