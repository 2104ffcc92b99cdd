package outbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

// TestEveryStatementOfTheLoopMayFail injects an error before and after each statement, one after another: the loop
// lives, and everything is delivered in the end (R21).
func TestEveryStatementOfTheLoopMayFail(t *testing.T) {
	t.Parallel()
	faults := map[string]func() error{"deadlock": errDeadlock, "lock wait": errLockWait, "connection": func() error { return errInjected }}
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		plain := e.db(t)
		for _, after := range []bool{false, true} {
			for name, fault := range faults {
				if after && name != "connection" {
					continue // the database does not answer so when it has done the work
				}
				failEveryStatement(t, e, plain, mode, after, fault)
			}
		}
	})
}

func failEveryStatement(t *testing.T, e *engine, plain *database.DB, mode ClaimMode, after bool, fault func() error) {
	t.Helper()
	require.NoError(t, plain.Write.Exec("DELETE FROM t_event_record").Error)
	require.NoError(t, plain.Write.Exec("DELETE FROM t_local").Error)
	var armed atomic.Bool
	var mu sync.Mutex
	hit := map[string]bool{}
	// Each distinct statement fails the first two times.
	count := map[string]int{}
	var renewals atomic.Int32
	renewed := make(chan struct{})
	inject := func(op database.Op, query string) error {
		if strings.Contains(query, "SET lease_until") && renewals.Add(1) == 3 {
			close(renewed)
		}
		if !armed.Load() || op == database.OpRollback {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		key := string(op) + " " + statementKey(query)
		if count[key]++; count[key] <= 2 {
			hit[key] = true
			return fault()
		}
		return nil
	}
	o := database.Options{Hooks: database.Hooks{Before: inject}}
	if after {
		o.Hooks = database.Hooks{After: inject}
	}
	db := e.open(t, o)
	var calls atomic.Int32
	sink := newFakeSink(nil)
	sink.answer = func(ctx context.Context, batch []Record) error {
		calls.Add(1)
		for _, r := range batch {
			switch {
			case r.BizNo == "A1":
				return Refused(errors.New("no"))
			case r.BizNo == "A2" && calls.Load() < 8:
				return errors.New("boom")
			}
		}
		switch calls.Load() {
		case 9, 10:
			return Unreachable(errors.New("down"))
		}
		select { // a batch that is long enough for renewals
		case <-renewed:
		case <-ctx.Done():
		}
		return nil
	}
	cfg := testConfig(t, db, sink)
	cfg.Claim, cfg.MaxRetries = mode, 50
	write(t, plain, "A", 30)
	// And something left over from a relay that died, to be reclaimed and buried.
	s := newStore(plain)
	all := entries(t, plain)
	_, err := s.claim(plain.Write, "gone", "main", []int64{all[0].ID, all[3].ID}, -time.Second)
	require.NoError(t, err)
	require.NoError(t, plain.Write.Exec("UPDATE t_event_record SET reclaim_count = 4 WHERE id = ?", all[3].ID).Error)
	armed.Store(true)
	r := newTestRelay(t, cfg)
	r.loops[0].renewEvery = 40 * time.Millisecond
	require.NoError(t, r.Start())
	eventually(t, func() bool {
		return countStatus(t, plain, StatusSuccess) == 28 && countStatus(t, plain, StatusFail) == 2
	}, "the loop lives")
	require.NoError(t, r.Stop(t.Context()))
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"SET status = 'SENDING'", "SET status = 'SUCCESS'", "SET status = 'FAIL'", "reclaim_count = reclaim_count + 1", "SET lease_until"} {
		found := slices.ContainsFunc(slices.Collect(maps.Keys(hit)), func(k string) bool { return strings.Contains(k, want) })
		require.True(t, found, "no fault was injected into %q: %v", want, slices.Sorted(maps.Keys(hit)))
	}
	for _, op := range []string{"renew", "mark", "retry", "put-off", "fail", "release"} {
		require.Zero(t, missesOf(r, op), "%s after=%v", op, after)
	}
}

// statementKey makes statements that differ in their values or the length of a list alike.
func statementKey(query string) string {
	q := strings.ReplaceAll(query, ",?", "")
	return q
}

// TestRelayLivesWhileItsRowsAreLocked: somebody holds the locks for longer than any statement of the relay waits.
func TestRelayLivesWhileItsRowsAreLocked(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		plain := e.db(t)
		write(t, plain, "A"+string(mode), 30)
		sink := newFakeSink(nil)
		var statements atomic.Int32
		core, logs := observer.New(zapcore.InfoLevel)
		cfg := testConfig(t, e.open(t, database.Options{LockWait: 20 * time.Millisecond, Hooks: database.Hooks{Before: func(database.Op, string) error {
			statements.Add(1)
			return nil
		}}}), sink)
		cfg.Claim, cfg.StatementTimeout = mode, 100*time.Millisecond
		cfg.Logger = zap.New(core)
		r := newTestRelay(t, cfg)
		require.NoError(t, plain.InTx(t.Context(), func(tx *gorm.DB) error {
			require.NoError(t, tx.Exec("UPDATE t_event_record SET aggregate_version = 2").Error)
			start(t, r)
			eventually(t, func() bool {
				// Skip-locked passes over the rows and meets no error.
				return statements.Load() > 30 && (logs.FilterField(zap.String("task", "relay")).Len() > 0 || mode == ClaimSkipLocked)
			}, "it goes on trying")
			return nil
		}))
		eventually(t, func() bool { return countStatus(t, plain, StatusSuccess) == 30 }, "")
		for subject, n := range sink.count() {
			require.Equal(t, 1, n, subject)
		}
		failing := map[any]bool{}
		for _, e := range logs.All() {
			switch task := e.ContextMap()["task"]; e.Message {
			case "failed, going on":
				require.False(t, failing[task], "%v: logged once until it works again", task)
				failing[task] = true
			case "works again":
				failing[task] = false
			}
		}
	})
}

// TestStatementsOfAnOrderedSink: the same budget, 0.1 statements per event, where each event is the first of its key.
func TestStatementsOfAnOrderedSink(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		rec := &recorder{}
		db := e.open(t, database.Options{Hooks: rec.hooks()})
		write(t, e.db(t), "A", 50)
		r := caughtUp(orderedRelay(t, db, mode, HeadOfLineBlock, newFakeSink(nil), func(c *RelayConfig) { c.Batch = 50 }))
		rec.reset()
		require.Equal(t, 50, mustOnce(t, r).claimed)
		statements := slices.DeleteFunc(rec.all(), func(s string) bool { return s == "begin" || s == "commit" })
		require.LessOrEqual(t, len(statements), 5, "%v", statements)
	})
}

// TestStatementsPerRelayedEvent is the budget of the loop: transaction control aside, how many statements a batch
// costs.
func TestStatementsPerRelayedEvent(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		rec := &recorder{}
		db := e.open(t, database.Options{Hooks: rec.hooks()})
		write(t, e.db(t), "A", 50)
		cfg := testConfig(t, db, newFakeSink(nil))
		cfg.Claim, cfg.Batch = mode, 50
		r := caughtUp(newTestRelay(t, cfg))
		rec.reset()
		require.Equal(t, 50, mustOnce(t, r).claimed)
		want := []string{"query SELECT t_event_record", "exec UPDATE t_event_record", "query SELECT t_event_record", "exec UPDATE t_event_record"}
		if mode == ClaimSkipLocked {
			want = []string{"begin", "query SELECT t_event_record", "exec UPDATE t_event_record", "commit", "exec UPDATE t_event_record"}
		}
		require.Equal(t, want, rec.all())
		rec.reset()
		require.Zero(t, mustOnce(t, r).claimed)
		require.LessOrEqual(t, len(rec.all()), 3, "an idle poll")
	})
}
