package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// exclusive is a far end that notices when two relays send the same event within one lease.
type exclusive struct {
	mu    sync.Mutex
	owner map[string]string // subject -> relay that is sending it
	both  []string
	sent  map[string]int
}

func (x *exclusive) sink(relay string, work time.Duration) *fakeSink {
	return newFakeSink(func(ctx context.Context, batch []Record) error {
		x.mu.Lock()
		for _, r := range batch {
			if x.sent[r.BizNo] > 0 || x.owner[r.BizNo] != "" {
				x.both = append(x.both, r.BizNo+" by "+x.owner[r.BizNo]+" and "+relay)
			}
			x.owner[r.BizNo] = relay
			x.sent[r.BizNo]++
		}
		x.mu.Unlock()
		sleep(ctx, work)
		return nil
	})
}

// TestTwoRelaysShareATable: no event is sent by both while its lease holds.
func TestTwoRelaysShareATable(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		x := &exclusive{owner: map[string]string{}, sent: map[string]int{}}
		var relays []*Relay
		for i := range 2 {
			name := fmt.Sprint("relay", i)
			cfg := testConfig(t, e.db(t), x.sink(name, time.Millisecond))
			cfg.Claim, cfg.Instance, cfg.Lease = mode, name, 6*time.Second
			if i == 1 && e.name == "mysql" {
				cfg.Claim = ClaimConditionalUpdate // the two ways go together
			}
			r := newTestRelay(t, cfg)
			relays = append(relays, r)
			start(t, r)
		}
		write(t, db, "A"+string(mode), 200)
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 200 }, "")
		require.Empty(t, x.both)
		require.Len(t, x.sent, 200)
		for _, r := range relays {
			require.Zero(t, totalMisses(r))
		}
	})
}

// dead makes a database handle whose statements all fail from the moment kill is called: the process is gone.
func dead(t *testing.T, e *engine) (db *database.DB, kill func()) {
	var gone atomic.Bool
	db = e.open(t, database.Options{Hooks: database.Hooks{Before: func(database.Op, string) error {
		if gone.Load() {
			return errInjected
		}
		return nil
	}}})
	return db, func() { gone.Store(true) }
}

// TestRelayDies between claim and send, send and mark, and after the mark: the next relay finishes its work.
func TestRelayDies(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		for _, point := range []string{"claim", "send", "mark"} {
			plain := e.db(t)
			require.NoError(t, plain.Write.Exec("DELETE FROM t_event_record").Error)
			require.NoError(t, plain.Write.Exec("DELETE FROM t_local").Error)
			write(t, plain, "A", 5)
			db, kill := dead(t, e)
			sink := newFakeSink(nil)
			cfg := testConfig(t, db, sink)
			cfg.Claim, cfg.Lease, cfg.SendTimeout, cfg.StatementTimeout = mode, 600*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
			died := make(chan struct{})
			die := sync.OnceFunc(func() { kill(); close(died) })
			hard, cancel := context.WithCancel(t.Context())
			hook := func() { die(); cancel() }
			switch point {
			case "claim":
				cfg.Hooks.AfterClaim = hook
			case "send":
				cfg.Hooks.AfterSend = hook
			case "mark":
				cfg.Hooks.AfterMark = hook
			}
			victim := newTestRelay(t, cfg)
			var err error
			eventually(t, func() bool {
				_, err = victim.loops[0].runOnce(t.Context(), hard)
				select {
				case <-died:
					return true
				default:
					return false // a busy machine: the claim took too long
				}
			}, point)
			if point != "mark" {
				require.Error(t, err)
				require.Equal(t, 5, countStatus(t, plain, StatusSending))
			}

			next := newFakeSink(nil)
			cfg2 := testConfig(t, plain, next)
			cfg2.Claim = mode
			heir := newTestRelay(t, cfg2)
			require.NoError(t, heir.Start())
			eventually(t, func() bool { return countStatus(t, plain, StatusSuccess) == 5 }, point)
			sent := 0
			for _, n := range next.count() {
				sent += n
			}
			require.Equal(t, map[string]int{"claim": 5, "send": 5, "mark": 0}[point], sent, point)
			require.NoError(t, heir.Stop(t.Context()))
			if point != "mark" {
				require.EqualValues(t, 5, testutil.ToFloat64(heir.metrics.reclaimed.WithLabelValues("main")))
			}
		}
	})
}

// TestCommitOrderIsNotIDOrder: the lower id commits last and is delivered all the same (R1).
func TestCommitOrderIsNotIDOrder(t *testing.T) {
	t.Parallel()
	e := newMySQL(t)
	db := e.db(t)
	w := newTestWriter(t, db)
	sink := newFakeSink(nil)
	r := newTestRelay(t, testConfig(t, db, sink))
	start(t, r)
	written, finish := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- db.InTx(context.Background(), func(tx *gorm.DB) error {
			at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			if err != nil {
				return err
			}
			if err := w.WriteTx(tx, event("A"), at); err != nil {
				return err
			}
			close(written)
			<-finish
			return nil
		})
	}()
	<-written
	write(t, db, "B", 3)
	eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 3 }, "later ids do not wait for an open transaction")
	close(finish)
	require.NoError(t, <-done)
	eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 4 }, "")
	require.Less(t, entryOf(t, db, "A").ID, entryOf(t, db, "B0").ID)
	require.Equal(t, 1, sink.count()["A"])
}

// TestManyWritersLoseNothing: 16 writers, some of which roll back, a slow sink, two relays (R3).
func TestManyWritersLoseNothing(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		const writers, each = 16, 25
		db := e.db(t)
		sink := newFakeSink(func(ctx context.Context, _ []Record) error { sleep(ctx, time.Millisecond); return nil })
		sinks := []*fakeSink{sink, newFakeSink(sink.answer)}
		var nudge func()
		for i, s := range sinks {
			cfg := testConfig(t, e.db(t), s)
			cfg.Instance = fmt.Sprint("relay", i)
			cfg.Lease = 10 * time.Second
			r := newTestRelay(t, cfg)
			nudge = r.Nudge
			start(t, r)
		}
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Nudge = nudge })
		var mu sync.Mutex
		want := map[string]int{}
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for n := range each {
					subject := fmt.Sprintf("W%d-%d", i, n)
					_, err := w.PublishInTx(context.Background(), event(subject), func(tx *gorm.DB, at halfbox.Attempt) error {
						if err := insertLocal(tx, at); err != nil {
							return err
						}
						if n%5 == 0 {
							return errors.New("business says no")
						}
						return nil
					})
					if err == nil {
						mu.Lock()
						want[subject] = 1
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		require.Len(t, want, writers*each*4/5)
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == len(want) }, "")
		got := sinks[0].count()
		for subject, n := range sinks[1].count() {
			got[subject] += n
		}
		require.Equal(t, want, got)
	})
}

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
	inject := func(op database.Op, query string) error {
		if strings.Contains(query, "SET lease_until") {
			renewals.Add(1)
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
		if renewals.Load() < 3 {
			sleep(ctx, 80*time.Millisecond) // a batch that is long enough for a renewal
		}
		return nil
	}
	cfg := testConfig(t, db, sink)
	cfg.Claim, cfg.MaxRetries = mode, 50
	cfg.Lease, cfg.SendTimeout, cfg.StatementTimeout = 900*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	write(t, plain, "A", 30)
	// And something left over from a relay that died, to be reclaimed and buried.
	s := newStore(plain)
	all := entries(t, plain)
	_, err := s.claim(plain.Write, "gone", "main", []int64{all[0].ID, all[3].ID}, -time.Second)
	require.NoError(t, err)
	require.NoError(t, plain.Write.Exec("UPDATE t_event_record SET reclaim_count = 4 WHERE id = ?", all[3].ID).Error)
	armed.Store(true)
	r := newTestRelay(t, cfg)
	require.NoError(t, r.Start())
	eventually(t, func() bool {
		return countStatus(t, plain, StatusSuccess) == 28 && countStatus(t, plain, StatusFail) == 2
	}, "the loop lives")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, r.Stop(ctx))
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
		var statements, errs atomic.Int32
		cfg := testConfig(t, e.open(t, database.Options{LockWait: 20 * time.Millisecond, Hooks: database.Hooks{Before: func(database.Op, string) error {
			statements.Add(1)
			return nil
		}}}), sink)
		cfg.Claim, cfg.StatementTimeout = mode, 100*time.Millisecond
		cfg.Logger = zap.New(countWarnings{&errs})
		r := newTestRelay(t, cfg)
		require.NoError(t, plain.InTx(t.Context(), func(tx *gorm.DB) error {
			require.NoError(t, tx.Exec("UPDATE t_event_record SET aggregate_version = 2").Error)
			start(t, r)
			eventually(t, func() bool {
				// Skip-locked passes over the rows and meets no error.
				return statements.Load() > 30 && (errs.Load() > 0 || mode == ClaimSkipLocked)
			}, "it goes on trying")
			return nil
		}))
		eventually(t, func() bool { return countStatus(t, plain, StatusSuccess) == 30 }, "")
		for subject, n := range sink.count() {
			require.Equal(t, 1, n, subject)
		}
		require.LessOrEqual(t, errs.Load(), int32(3), "logged once for each task")
	})
}

// countWarnings is a logger that counts warnings and errors.
type countWarnings struct{ n *atomic.Int32 }

func (countWarnings) Enabled(l zapcore.Level) bool        { return l >= zapcore.WarnLevel }
func (c countWarnings) With([]zapcore.Field) zapcore.Core { return c }
func (countWarnings) Sync() error                         { return nil }
func (c countWarnings) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return ce.AddCore(e, c)
}

func (c countWarnings) Write(zapcore.Entry, []zapcore.Field) error {
	c.n.Add(1)
	return nil
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
		r := newTestRelay(t, cfg)
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

func TestNudgeIsFasterThanThePoll(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	sent := make(chan struct{}, 1)
	cfg := testConfig(t, db, newFakeSink(func(context.Context, []Record) error { sent <- struct{}{}; return nil }))
	cfg.PollMin, cfg.PollMax = time.Minute, time.Hour
	r := newTestRelay(t, cfg)
	start(t, r)
	w := newTestWriter(t, db, func(c *WriterConfig) { c.Nudge = r.Nudge })
	_, err := w.PublishInTx(t.Context(), event("A0"), insertLocal)
	require.NoError(t, err)
	select {
	case <-sent:
	case <-time.After(10 * time.Second):
		t.Fatal("not nudged")
	}
	for range 100 {
		r.Nudge() // never blocks
	}
}

// TestReclaimNudges: what was reclaimed is sent at once, not at the next poll.
func TestReclaimNudges(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	plain := e.db(t)
	write(t, plain, "A", 1)
	put(t, plain, StatusSending, "gone", time.Hour)
	var looks atomic.Int32
	db := e.open(t, database.Options{Hooks: database.Hooks{After: func(_ database.Op, query string) error {
		if strings.Contains(query, "next_retry_time <= ") {
			looks.Add(1)
		}
		return nil
	}}})
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.PollMin, cfg.PollMax = time.Hour, time.Hour
	start(t, newTestRelay(t, cfg))
	eventually(t, func() bool { return looks.Load() == 1 }, "it has looked, and waits for the next poll")
	expire(t, plain)
	eventually(t, func() bool { return countStatus(t, plain, StatusSuccess) == 1 }, "nudged")
}

func TestPollDoublesWhileIdle(t *testing.T) {
	t.Parallel()
	p := poll{least: 50, most: 300}
	for _, c := range []struct {
		worked bool
		want   time.Duration
	}{{false, 50}, {false, 100}, {true, 50}, {false, 100}, {false, 200}, {false, 300}, {false, 300}, {true, 50}, {true, 50}} {
		require.Equal(t, c.want, p.next(c.worked))
	}
}

// TestLostRaceIsFollowedByAShortPause: another relay takes all the candidates between the look and the claim.
func TestLostRaceIsFollowedByAShortPause(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		plain := e.db(t)
		write(t, plain, "A", 4)
		all := entries(t, plain)
		faster := func() {
			n, err := newStore(plain).claim(plain.Write, "other", "main", []int64{all[0].ID, all[1].ID}, time.Minute)
			require.NoError(t, err)
			require.EqualValues(t, 2, n)
		}
		var race sync.Once
		db := e.open(t, database.Options{Hooks: database.Hooks{Before: func(op database.Op, _ string) error {
			if op == database.OpExec {
				race.Do(faster)
			}
			return nil
		}}})
		cfg := testConfig(t, db, newFakeSink(nil))
		cfg.Claim, cfg.Batch = ClaimConditionalUpdate, 2
		r := newTestRelay(t, cfg)
		res := mustOnce(t, r)
		require.Zero(t, res.claimed)
		require.GreaterOrEqual(t, res.pause, time.Millisecond)
		require.Less(t, res.pause, 4*time.Millisecond)
		require.Equal(t, 2, mustOnce(t, r).claimed)
		require.Zero(t, mustOnce(t, r).pause, "nothing is due, so no race was lost")
	})
}

func TestOneSinkDownDoesNotSlowAnother(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	hangs := newFakeSink(func(ctx context.Context, _ []Record) error { <-ctx.Done(); return ctx.Err() })
	hangs.name = "hangs"
	cfg := testConfig(t, db, newFakeSink(nil), hangs)
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
		require.Equal(t, 3, countStatus(t, db, StatusSending))
		require.Equal(t, 7, countStatus(t, db, StatusWait))
	})
}

func TestRelayConfigIsValidated(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	for name, change := range map[string]func(*RelayConfig){
		"no database":              func(c *RelayConfig) { c.DB = nil },
		"no sinks":                 func(c *RelayConfig) { c.Sinks = nil },
		"nil sink":                 func(c *RelayConfig) { c.Sinks = []Sink{nil} },
		"two of a name":            func(c *RelayConfig) { c.Sinks = []Sink{newFakeSink(nil), newFakeSink(nil)} },
		"nameless sink":            func(c *RelayConfig) { c.Sinks = []Sink{&fakeSink{}} },
		"skip-locked on SQLite":    func(c *RelayConfig) { c.Claim = ClaimSkipLocked },
		"unknown claim":            func(c *RelayConfig) { c.Claim = "guess" },
		"send timeout at lease":    func(c *RelayConfig) { c.SendTimeout = c.Lease },
		"send timeout above third": func(c *RelayConfig) { c.SendTimeout = c.Lease/3 + 1 },
		"statement timeout":        func(c *RelayConfig) { c.StatementTimeout = c.Lease },
		"batch":                    func(c *RelayConfig) { c.Batch = -1 },
		"jitter":                   func(c *RelayConfig) { c.Jitter = 1 },
		"poll":                     func(c *RelayConfig) { c.PollMin = 2 * c.PollMax },
		"negative duration":        func(c *RelayConfig) { c.ReclaimInterval = -1 },
		"breaker":                  func(c *RelayConfig) { c.Breaker.OpenMax = time.Millisecond },
		"reclaims":                 func(c *RelayConfig) { c.MaxReclaims = 2 },
		"drain rate":               func(c *RelayConfig) { c.DrainRate = -1 },
		"instance":                 func(c *RelayConfig) { c.Instance = "ä" },
	} {
		cfg := testConfig(t, db, newFakeSink(nil))
		change(&cfg)
		_, err := NewRelay(cfg)
		require.Error(t, err, name)
	}
	r := newTestRelay(t, RelayConfig{DB: db, Sinks: []Sink{newFakeSink(nil)}})
	require.Equal(t, 20, r.cfg.Batch)
	require.Equal(t, 10*time.Minute, r.cfg.Lease)
	require.Equal(t, ClaimConditionalUpdate, r.cfg.Claim)
	require.Equal(t, 3, r.cfg.MaxRetries)
	none := newTestRelay(t, RelayConfig{DB: db, Sinks: []Sink{newFakeSink(nil)}, MaxRetries: -1, Jitter: -1})
	require.Zero(t, none.cfg.MaxRetries)
	require.Zero(t, none.cfg.Jitter)
}

func TestSeriesExistFromTheStart(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	reg := prometheus.NewPedanticRegistry()
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.Registerer = reg
	r := newTestRelay(t, cfg)
	families, err := reg.Gather()
	require.NoError(t, err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	require.Equal(t, []string{
		"halfbox_outbox_attempts_total", "halfbox_outbox_backlog", "halfbox_outbox_breaker_state", "halfbox_outbox_claim_duration_seconds",
		"halfbox_outbox_dead_total", "halfbox_outbox_lease_misses_total", "halfbox_outbox_oldest_unsent_age_seconds", "halfbox_outbox_overdue_leases",
		"halfbox_outbox_reclaimed_total", "halfbox_outbox_send_duration_seconds",
	}, names)
	_, err = NewRelay(cfg)
	require.Error(t, err, "the same registry twice without a label")

	// And the gauges follow the database, down to zero too.
	gauge := func(status Status) float64 {
		return testutil.ToFloat64(r.metrics.backlog.WithLabelValues("main", string(status)))
	}
	write(t, db, "A", 3)
	// SQLite's clock counts milliseconds: what was written in this one has no age yet.
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET created_at = ?", time.Now().UTC().Add(-time.Second)).Error)
	require.NoError(t, r.statsOnce(t.Context()))
	require.EqualValues(t, 3, gauge(StatusWait))
	require.Positive(t, testutil.ToFloat64(r.metrics.oldest.WithLabelValues("main")))
	put(t, db, StatusSending, "me", -time.Minute)
	require.NoError(t, r.statsOnce(t.Context()))
	require.Zero(t, gauge(StatusWait))
	require.EqualValues(t, 3, gauge(StatusSending))
	require.EqualValues(t, 3, testutil.ToFloat64(r.metrics.overdue))
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS'").Error)
	require.NoError(t, r.statsOnce(t.Context()))
	require.Zero(t, gauge(StatusSending))
	require.Zero(t, testutil.ToFloat64(r.metrics.oldest.WithLabelValues("main")))
	require.Zero(t, testutil.ToFloat64(r.metrics.overdue))
}

func TestStats(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		st, err := Stats(t.Context(), db)
		require.NoError(t, err)
		require.Empty(t, st.Counts)
		require.Empty(t, st.OldestUnsent)

		write(t, db, "A", 4)
		old := time.Now().UTC().Add(-time.Hour)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET created_at = ? WHERE biz_no = 'A1'", old).Error)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS' WHERE biz_no = 'A0'").Error)
		st, err = Stats(t.Context(), db)
		require.NoError(t, err)
		require.ElementsMatch(t, []Count{{"main", StatusWait, 3}, {"main", StatusSuccess, 1}}, st.Counts)
		require.InDelta(t, time.Hour.Seconds(), st.OldestUnsent["main"].Seconds(), 5)

		// A clock that runs ahead makes no negative age.
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET created_at = ?", time.Now().UTC().Add(time.Hour)).Error)
		st, err = Stats(t.Context(), db)
		require.NoError(t, err)
		require.Zero(t, st.OldestUnsent["main"])

		found, err := List(t.Context(), db, Filter{Sink: "main", Status: StatusWait, Limit: 2})
		require.NoError(t, err)
		require.Len(t, found, 2)
		require.Equal(t, "A1", found[0].BizNo)
		found, err = List(t.Context(), db, Filter{EventType: "order.cancelled"})
		require.NoError(t, err)
		require.Empty(t, found)
	})
}
