package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// bury makes dead letters of the records that are WAIT, the way a relay would have left them.
func bury(t testing.TB, db *database.DB) {
	t.Helper()
	require.NoError(t, db.Write.Exec(`UPDATE t_event_record SET status = 'FAIL', claim_owner = 'gone-1', retry_count = 3, reclaim_count = 2,
 last_error = 'refused: no such topic', first_error_at = created_at WHERE status = 'WAIT'`).Error)
}

func operation1(f Filter) Operation {
	return Operation{Filter: f, Actor: "ann", Reason: "topic was made"}
}

func TestRedriveEndsInSuccess(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		require.NoError(t, db.Write.Exec("DELETE FROM t_audit_log").Error)
		var broken atomic.Bool
		broken.Store(true)
		sink := newFakeSink(func(context.Context, []Record) error {
			if broken.Load() {
				return Refused(errors.New("no such topic"))
			}
			return nil
		})
		cfg := testConfig(t, e.db(t), sink)
		cfg.Claim = mode
		start(t, newTestRelay(t, cfg))
		msgIDs := write(t, db, "R", 5)
		eventually(t, func() bool { return countStatus(t, db, StatusFail) == 5 }, "dead")

		dry := operation1(Filter{Error: "SUCH TOPIC"})
		dry.DryRun, dry.Actor, dry.Reason = true, "", ""
		res, err := Redrive(t.Context(), db, dry)
		require.NoError(t, err)
		require.Equal(t, 5, res.Matched)
		require.Zero(t, res.Changed)
		require.Len(t, res.Sample, 5)
		require.Equal(t, 5, countStatus(t, db, StatusFail), "a dry run changes nothing")

		broken.Store(false)
		op := operation1(Filter{Error: "such topic"})
		res, err = Redrive(t.Context(), db, op)
		require.NoError(t, err)
		require.Equal(t, 5, res.Changed)
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 5 }, "redriven ends in SUCCESS")
		for i, msgID := range msgIDs {
			got, err := Get(t.Context(), db, msgID)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("R", i), got[0].BizNo, "under its own msg_id")
			audits, err := AuditsOf(t.Context(), db, msgID)
			require.NoError(t, err)
			require.Len(t, audits, 1)
			a := audits[0]
			require.WithinDuration(t, time.Now(), a.CreatedAt, time.Minute)
			a.CreatedAt = time.Time{}
			require.Equal(t, Audit{
				RunID: res.RunID, Action: ActionRedrive, Actor: "ann", Reason: "topic was made", MsgID: msgID, Sink: "main",
				EventType: "order.created", BizNo: got[0].BizNo, Detail: "refused: refused by the sink: no such topic",
			}, a)
		}
		run, err := AuditsOfRun(t.Context(), db, res.RunID, 3)
		require.NoError(t, err)
		require.Len(t, run, 3)
	})
}

// TestRedriveGivesAllRetriesBack and touches nothing else.
func TestRedriveGivesAllRetriesBack(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		msgIDs := write(t, db, "D", 3)
		bury(t, db)
		write(t, db, "W", 2)
		res, err := Redrive(t.Context(), db, operation1(Filter{MsgID: msgIDs[1], Sink: "main", Status: StatusWait}))
		require.NoError(t, err)
		require.Equal(t, 1, res.Changed)
		got := entryOf(t, db, "D1")
		require.Equal(t, StatusWait, got.Status)
		require.Zero(t, got.RetryCount)
		require.Zero(t, got.ReclaimCount)
		require.Empty(t, got.ClaimOwner)
		require.Nil(t, got.FirstErrorAt)
		require.Equal(t, "refused: no such topic", got.LastError, "kept until there is another")
		require.Equal(t, 2, countStatus(t, db, StatusFail))

		for _, f := range []Filter{{MsgID: msgIDs[1]}, {MsgID: msgIDs[0], Sink: "other"}, {BizNo: "W0"}, {MsgID: "nobody"}} {
			res, err := Redrive(t.Context(), db, operation1(f))
			require.NoError(t, err)
			require.Zero(t, res.Matched, "%+v is no dead letter", f)
		}
	})
}

func TestOperationIsValidated(t *testing.T) {
	t.Parallel()
	db := newSQLite(t).db(t)
	for want, change := range map[string]func(*Operation){
		"actor is missing":  func(o *Operation) { o.Actor = " " },
		"reason is missing": func(o *Operation) { o.Reason = "" },
		"reason is longer":  func(o *Operation) { o.Reason = strings.Repeat("ä", maxReason+1) },
		"actor is longer":   func(o *Operation) { o.Actor = strings.Repeat("ä", maxActor+1) },
		"not valid UTF-8":   func(o *Operation) { o.Reason = "\xff" },
		"limit":             func(o *Operation) { o.Limit = -1 },
		"rate":              func(o *Operation) { o.Rate = -1 },
	} {
		op := operation1(Filter{})
		change(&op)
		for _, call := range []func(context.Context, *database.DB, Operation) (OperationResult, error){Redrive, PurgeDead} {
			_, err := call(t.Context(), db, op)
			require.ErrorIs(t, err, ErrBadOperation)
			require.ErrorContains(t, err, want)
		}
	}
}

// TestRedriveLimitRateAndInterrupt: the limit holds, the rate paces, and an interrupt leaves whole batches with their
// audit rows.
func TestRedriveLimitRateAndInterrupt(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		write(t, db, "D", 40)
		bury(t, db)
		op := operation1(Filter{})
		op.Limit = 7
		res, err := Redrive(t.Context(), db, op)
		require.NoError(t, err)
		require.Equal(t, 7, res.Changed)
		require.True(t, res.More)
		require.Equal(t, 33, countStatus(t, db, StatusFail))

		op = operation1(Filter{})
		op.Rate = 4 // the second batch may begin after a second
		var steps []int
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		op.Progress = func(r OperationResult) {
			if steps = append(steps, r.Changed); len(steps) == 2 {
				cancel()
			}
		}
		res, err = Redrive(ctx, db, op)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, []int{4, 8}, steps)
		require.Equal(t, 8, res.Changed, "what was done is said")
		require.GreaterOrEqual(t, time.Since(began), time.Second)
		require.Equal(t, 25, countStatus(t, db, StatusFail))
		var audited int64
		require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM t_audit_log").Scan(&audited).Error)
		require.EqualValues(t, 15, audited)
	})
}

// TestAuditAndChangeAreOneTransaction: without the audit row there is no redrive, and no purge.
func TestAuditAndChangeAreOneTransaction(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		plain := e.db(t)
		write(t, plain, "D", 3)
		bury(t, plain)
		for _, stop := range []string{"INSERT INTO t_audit_log", "commit"} {
			db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, query string) error {
				if strings.HasPrefix(query, stop) || string(op) == stop {
					return errInjected
				}
				return nil
			}}})
			for _, call := range []func(context.Context, *database.DB, Operation) (OperationResult, error){Redrive, PurgeDead} {
				res, err := call(t.Context(), db, operation1(Filter{}))
				require.ErrorIs(t, err, errInjected)
				require.Zero(t, res.Changed)
			}
			require.Equal(t, 3, countStatus(t, plain, StatusFail))
		}
		var audited int64
		require.NoError(t, plain.Read.Raw("SELECT COUNT(*) FROM t_audit_log").Scan(&audited).Error)
		require.Zero(t, audited)

		// A commit whose answer is lost is not taken for a failure.
		lost := e.open(t, database.Options{Hooks: database.Hooks{After: func(op database.Op, _ string) error {
			if op == database.OpCommit {
				return errInjected
			}
			return nil
		}}})
		_, err := Redrive(t.Context(), lost, operation1(Filter{}))
		require.ErrorIs(t, err, halfbox.ErrUnknown)
		res, err := Redrive(t.Context(), plain, operation1(Filter{}))
		require.NoError(t, err, "it may be repeated")
		require.Zero(t, res.Changed, "it had taken effect")
		require.Equal(t, 3, countStatus(t, plain, StatusWait))
		require.NoError(t, plain.Read.Raw("SELECT COUNT(*) FROM t_audit_log").Scan(&audited).Error)
		require.EqualValues(t, 3, audited, "one row for each, not two")
	})
}

// TestTwoRedrivesBesideRelays: each dead letter is redriven by one of them, one audit row each, and all of them are
// delivered once; a record that dies again is not redriven for ever.
func TestTwoRedrivesBesideRelays(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		const dead = 300
		db := e.db(t)
		write(t, db, "D", dead)
		bury(t, db)
		sink := newFakeSink(func(_ context.Context, batch []Record) error {
			for _, r := range batch {
				if r.BizNo == "D13" {
					return Refused(errors.New("poison"))
				}
			}
			return nil
		})
		cfg := testConfig(t, e.db(t), sink)
		cfg.Batch = 50
		start(t, newTestRelay(t, cfg))
		var wg sync.WaitGroup
		var changed atomic.Int64
		for i := range 3 {
			wg.Go(func() {
				op := operation1(Filter{Sink: "main"})
				op.Actor = fmt.Sprint("operator", i)
				res, err := Redrive(context.Background(), db, op)
				if err != nil {
					t.Error(err)
				}
				changed.Add(int64(res.Changed))
			})
		}
		wg.Wait()
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == dead-1 && countStatus(t, db, StatusFail) == 1 }, "all but the poison")
		for subject, n := range sink.count() {
			if subject != "D13" {
				require.Equal(t, 1, n-duplicates(sink, subject), subject)
			}
		}
		var audited int64
		require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM t_audit_log WHERE biz_no <> 'D13'").Scan(&audited).Error)
		require.EqualValues(t, dead-1, audited)
		require.GreaterOrEqual(t, changed.Load(), int64(dead))
		require.LessOrEqual(t, changed.Load(), int64(dead+2), "the poison once per redrive at most")
	})
}

// duplicates counts the sends of a subject beside the poison, which were refused with it.
func duplicates(s *fakeSink, subject string) (n int) {
	for _, batch := range s.all() {
		with, poison := false, false
		for _, r := range batch {
			with = with || r.BizNo == subject
			poison = poison || r.BizNo == "D13"
		}
		if with && poison {
			n++
		}
	}
	return n
}

func TestPurgeDeadDeletesDeadLettersOnly(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		mixed(t, db, 60)
		before := map[Status]int{}
		for _, s := range Statuses() {
			before[s] = countStatus(t, db, s)
		}
		res, err := PurgeDead(t.Context(), db, operation1(Filter{Error: "timeout", Status: StatusSuccess}))
		require.NoError(t, err)
		require.Equal(t, 24, res.Changed)
		require.Equal(t, before[StatusFail]-24, countStatus(t, db, StatusFail))
		for _, s := range []Status{StatusWait, StatusSending, StatusSuccess} {
			require.Equal(t, before[s], countStatus(t, db, s))
		}
		audits, err := AuditsOfRun(t.Context(), db, res.RunID, 100)
		require.NoError(t, err)
		require.Len(t, audits, 24)
		require.Equal(t, ActionPurge, audits[0].Action)
		require.Equal(t, "retries exhausted: i/o timeout", audits[0].Detail)
	})
}
