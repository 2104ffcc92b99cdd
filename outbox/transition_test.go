package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// put brings the only record into a state directly.
func put(t *testing.T, db *database.DB, status Status, owner any, leaseIn time.Duration) int64 {
	t.Helper()
	s := newStore(db)
	_, err := s.exec(t.Context(), `UPDATE t_event_record SET status = ?, claim_owner = ?, lease_until = {now+}, next_retry_time = {now},
 retry_count = 0, reclaim_count = 0, sent_at = NULL, first_error_at = NULL, last_error = NULL`, status, owner, db.Dialect.Offset(leaseIn))
	require.NoError(t, err)
	return entries(t, db)[0].ID
}

// TestEveryTransitionFromEveryState writes each transition against each state and owner: only the one old status
// and the one owner are a hit.
func TestEveryTransitionFromEveryState(t *testing.T) {
	t.Parallel()
	at, lease := time.Now().UTC(), time.Minute
	transitions := map[string]struct {
		to       Status
		expired  bool // needs a lease that is over
		retries  int
		reclaims int
		run      func(ctx context.Context, s store, id int64) (int64, error)
	}{
		"renew": {to: StatusSending, run: func(ctx context.Context, s store, id int64) (int64, error) {
			return s.renew(ctx, "me", []int64{id}, lease)
		}},
		"mark": {to: StatusSuccess, run: func(ctx context.Context, s store, id int64) (int64, error) {
			return s.success(ctx, "me", []int64{id}, at)
		}},
		"release": {to: StatusWait, run: func(ctx context.Context, s store, id int64) (int64, error) { return s.release(ctx, "me", []int64{id}) }},
		"put-off": {to: StatusWait, run: func(ctx context.Context, s store, id int64) (int64, error) {
			return s.putOff(ctx, "me", []int64{id}, at, "x")
		}},
		"retry": {to: StatusWait, retries: 2, run: func(ctx context.Context, s store, id int64) (int64, error) {
			return s.retry(ctx, "me", id, 2, lease, at, "x")
		}},
		"fail": {to: StatusFail, retries: 3, run: func(ctx context.Context, s store, id int64) (int64, error) {
			return s.fail(ctx, "me", id, 3, at, "x")
		}},
		"reclaim": {to: StatusWait, expired: true, reclaims: 1, run: func(ctx context.Context, s store, id int64) (int64, error) {
			return s.reclaim(ctx, "me", []int64{id})
		}},
		"bury": {to: StatusFail, expired: true, reclaims: 1, run: func(ctx context.Context, s store, id int64) (int64, error) {
			return s.bury(ctx, "me", []int64{id}, at, "x")
		}},
	}
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		s := newStore(db)
		write(t, db, "A", 1)
		for name, tr := range transitions {
			for _, status := range Statuses() {
				for _, owner := range []any{nil, "me", "other"} {
					if status == StatusSending && owner == nil {
						continue // the table refuses it
					}
					for _, leaseIn := range []time.Duration{time.Minute, -time.Minute} {
						id := put(t, db, status, owner, leaseIn)
						before := entryOf(t, db, "A0")
						n, err := tr.run(t.Context(), s, id)
						require.NoError(t, err)
						hit := status == StatusSending && owner == "me" && (!tr.expired || leaseIn < 0)
						got := entryOf(t, db, "A0")
						if !hit {
							require.Zero(t, n, "%s of %s %v", name, status, owner)
							require.Equal(t, before, got)
							continue
						}
						require.EqualValues(t, 1, n, "%s of %s %v", name, status, owner)
						require.Equal(t, tr.to, got.Status, name)
						require.Equal(t, tr.retries, got.RetryCount, name)
						require.Equal(t, tr.reclaims, got.ReclaimCount, name)
						require.Equal(t, tr.to == StatusWait, got.ClaimOwner == "", name)
						require.Equal(t, tr.to == StatusSending, got.LeaseUntil != nil, name)
						require.Equal(t, tr.to == StatusSuccess, got.SentAt != nil, name)
					}
				}
			}
		}
	})
}

func TestClaimTakesOnlyWhatIsWaitingAndDue(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		s := newStore(db)
		q := claimRequest{sink: "main", owner: "me", limit: 10, lease: time.Minute}
		for _, status := range Statuses() {
			for _, dueIn := range []time.Duration{-time.Second, time.Minute} {
				require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
				require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
				write(t, db, "A", 1)
				put(t, db, status, "other", time.Minute)
				_, err := s.exec(t.Context(), "UPDATE t_event_record SET next_retry_time = {now+}", db.Dialect.Offset(dueIn))
				require.NoError(t, err)
				c, err := s.takeClaim(t.Context(), mode, q)
				require.NoError(t, err)
				got := entryOf(t, db, "A0")
				if status != StatusWait || dueIn > 0 {
					require.Empty(t, c.rows, "%s due in %v", status, dueIn)
					require.Equal(t, status, got.Status)
					continue
				}
				require.Len(t, c.rows, 1)
				require.Equal(t, StatusSending, got.Status)
				require.Equal(t, "me", got.ClaimOwner)
				require.NotNil(t, got.ClaimedAt)
				require.WithinDuration(t, got.ClaimedAt.Add(time.Minute), *got.LeaseUntil, 5*time.Millisecond)
				other := q
				other.sink = "elsewhere"
				c, err = s.takeClaim(t.Context(), mode, other)
				require.NoError(t, err)
				require.Empty(t, c.rows)
			}
		}
	})
}

// TestClaimConditionalLosesSilently: between reading and taking, another relay claims some of the candidates, and
// claims and puts back others.
func TestClaimConditionalLosesSilently(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		plain := e.db(t)
		write(t, plain, "A", 4)
		s := newStore(plain)
		interfered := false
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
			if op != database.OpExec || interfered {
				return nil
			}
			interfered = true
			all := entries(t, plain)
			n, err := s.claim(plain.Write, "other", "main", []int64{all[0].ID, all[1].ID}, time.Minute)
			require.NoError(t, err)
			require.EqualValues(t, 2, n)
			n, err = s.retry(t.Context(), "other", all[1].ID, 1, time.Minute, time.Now().UTC(), "x")
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			return nil
		}}})
		c, err := newStore(db).takeClaim(t.Context(), ClaimConditionalUpdate, claimRequest{sink: "main", owner: "me", limit: 10, lease: time.Minute})
		require.NoError(t, err)
		require.Len(t, c.rows, 2)
		require.Equal(t, "A2", c.rows[0].rec.BizNo)
		require.Equal(t, "A3", c.rows[1].rec.BizNo)
		require.Equal(t, "other", entryOf(t, plain, "A0").ClaimOwner)
		require.Equal(t, StatusWait, entryOf(t, plain, "A1").Status, "its backoff is not jumped")
	})
}

func TestClaimSkipLockedPassesLockedRows(t *testing.T) {
	t.Parallel()
	e := newMySQL(t)
	db := e.db(t)
	write(t, db, "A", 6)
	s := newStore(db)
	tx := db.Write.Begin()
	require.NoError(t, tx.Error)
	defer tx.Rollback()
	locked, _, err := s.lockDue(tx, claimRequest{sink: "main", limit: 3})
	require.NoError(t, err)
	require.Len(t, locked, 3)
	// Equal times must not make it lock more than it takes either (R32).
	c, err := s.takeClaim(t.Context(), ClaimSkipLocked, claimRequest{sink: "main", owner: "me", limit: 10, lease: time.Minute})
	require.NoError(t, err)
	require.Len(t, c.rows, 3)
	require.Equal(t, "A3", c.rows[0].rec.BizNo)
}

// TestOldOwnerTouchesNothing: a relay that lost its lease writes everything it may still want to write (R14, R15).
func TestOldOwnerTouchesNothing(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "A", 1)
		cfg := testConfig(t, db, newFakeSink(nil))
		cfg.Claim = mode
		r := newTestRelay(t, cfg)
		old, err := r.store.takeClaim(t.Context(), mode, claimRequest{sink: "main", owner: newOwner("test"), limit: 1, lease: time.Second})
		require.NoError(t, err)
		expire(t, db)
		res, err := r.reclaimOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, reclaimResult{reclaimed: 1}, res)

		writeAll := func() {
			s, id, at := r.store, old.rows[0].id, time.Now().UTC()
			for _, run := range []func() (int64, error){
				func() (int64, error) { return s.renew(t.Context(), old.owner, []int64{id}, time.Hour) },
				func() (int64, error) { return s.success(t.Context(), old.owner, []int64{id}, at) },
				func() (int64, error) { return s.release(t.Context(), old.owner, []int64{id}) },
				func() (int64, error) { return s.putOff(t.Context(), old.owner, []int64{id}, at, "x") },
				func() (int64, error) { return s.retry(t.Context(), old.owner, id, 1, 0, at, "x") },
				func() (int64, error) { return s.fail(t.Context(), old.owner, id, 1, at, "x") },
				func() (int64, error) { return s.bury(t.Context(), old.owner, []int64{id}, at, "x") },
			} {
				n, err := run()
				require.NoError(t, err)
				require.Zero(t, n)
			}
		}
		writeAll() // against an owner of NULL
		// The same relay claims again: the owner is another.
		again, err := r.store.takeClaim(t.Context(), mode, claimRequest{sink: "main", owner: newOwner("test"), limit: 1, lease: time.Minute})
		require.NoError(t, err)
		require.Len(t, again.rows, 1)
		require.NotEqual(t, old.owner, again.owner)
		writeAll()
		require.Equal(t, again.owner, entryOf(t, db, "A0").ClaimOwner)
	})
}

// TestReclaimLeavesWhatChangedMeanwhile: the row is completed, renewed or claimed anew between the reclaim's read
// and its write (R13).
func TestReclaimLeavesWhatChangedMeanwhile(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		for name, meanwhile := range map[string]func(s store, id int64) (int64, error){
			"completed": func(s store, id int64) (int64, error) {
				return s.success(context.Background(), "me", []int64{id}, time.Now().UTC())
			},
			"renewed": func(s store, id int64) (int64, error) {
				return s.renew(context.Background(), "me", []int64{id}, time.Minute)
			},
			"claimed anew": func(s store, id int64) (int64, error) {
				if _, err := s.release(context.Background(), "me", []int64{id}); err != nil {
					return 0, err
				}
				return s.claim(s.db.Write, "next", "main", []int64{id}, -time.Minute) // and it has run out as well
			},
		} {
			for _, reclaims := range []int{0, 4} {
				plain := e.db(t)
				require.NoError(t, plain.Write.Exec("DELETE FROM t_event_record").Error)
				require.NoError(t, plain.Write.Exec("DELETE FROM t_local").Error)
				write(t, plain, "A", 1)
				id := put(t, plain, StatusSending, "me", -time.Minute)
				require.NoError(t, plain.Write.Exec("UPDATE t_event_record SET reclaim_count = ?", reclaims).Error)
				var want Entry
				acted := false
				db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
					if op == database.OpExec && !acted {
						acted = true
						n, err := meanwhile(newStore(plain), id)
						require.NoError(t, err)
						require.EqualValues(t, 1, n)
						want = entryOf(t, plain, "A0")
					}
					return nil
				}}})
				r := newTestRelay(t, testConfig(t, db, newFakeSink(nil)))
				found, err := r.findExpired(t.Context())
				require.NoError(t, err)
				require.Len(t, found, 1)
				n, err := r.takeBack(t.Context(), groupExpired(found, 5)[0])
				require.NoError(t, err)
				require.Zero(t, n, name)
				require.Equal(t, want, entryOf(t, plain, "A0"), name)
				require.Zero(t, testutil.ToFloat64(r.metrics.reclaimed.WithLabelValues("main")))
			}
		}
	})
}

// TestRowThatKillsItsRelayDies: claimed alone after the second reclaim, dead at the fifth, its neighbours unharmed.
func TestRowThatKillsItsRelayDies(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "K", 1)
		write(t, db, "B", 3)
		cfg := testConfig(t, db, newFakeSink(nil))
		cfg.Claim = mode
		r := newTestRelay(t, cfg)
		for reclaims := 0; reclaims < 5; reclaims++ {
			require.Equal(t, reclaims, entryOf(t, db, "K0").ReclaimCount)
			c, err := r.store.takeClaim(t.Context(), mode, claimRequest{sink: "main", owner: newOwner("x"), limit: 10, lease: time.Minute})
			require.NoError(t, err)
			if reclaims < aloneAfter {
				require.Len(t, c.rows, 4, "the relay dies and takes the others with it")
			} else {
				require.Len(t, c.rows, 1)
				require.Equal(t, "K0", c.rows[0].rec.BizNo)
			}
			expire(t, db)
			_, err = r.reclaimOnce(t.Context())
			require.NoError(t, err)
			if reclaims+1 == aloneAfter {
				// From now on the others, reclaimed as often, go alone too; send them.
				for i := range 3 {
					require.NoError(t, db.Write.Exec("UPDATE t_event_record SET reclaim_count = 0 WHERE biz_no = ?", []string{"B0", "B1", "B2"}[i]).Error)
				}
			}
		}
		got := entryOf(t, db, "K0")
		require.Equal(t, StatusFail, got.Status)
		require.Equal(t, ReasonKillsRelay, got.Reason())
		require.Equal(t, 5, got.ReclaimCount)
		require.EqualValues(t, 1, testutil.ToFloat64(r.metrics.dead.WithLabelValues("main", ReasonKillsRelay)))
		untilIdle(t, r)
		require.Equal(t, 3, countStatus(t, db, StatusSuccess))
	})
}

func TestPickKeepsLonersApart(t *testing.T) {
	t.Parallel()
	rows := func(reclaims ...int) (out []row) {
		for i, n := range reclaims {
			out = append(out, row{id: int64(i), reclaims: n})
		}
		return out
	}
	require.Equal(t, []int64{0, 2}, ids(pick(rows(0, 2, 1, 3))))
	require.Equal(t, []int64{0}, ids(pick(rows(2, 0, 0))))
	require.Empty(t, pick(nil))
}
