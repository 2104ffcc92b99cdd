package checkback_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
)

// The decision table, row by row; every answer is given twice, since the broker asks again.
func TestDecisionTable(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.open(t, database.Options{})
		c := newChecker(t, e.open(t, database.Options{LockWait: time.Second}))
		twice := func(want checkback.Answer, h checkback.Half) {
			t.Helper()
			for range 2 {
				require.Equal(t, want, c.Check(t.Context(), h))
			}
		}
		c.counted(t, nil)
		committed, lost := newAttempt(t), newAttempt(t)
		o, err := create(t, attempts{db: db, at: committed})
		require.NoError(t, err)

		twice(checkback.Commit, half(committed, o.OrderNo, 0))
		twice(checkback.Commit, half(committed, o.OrderNo, time.Hour))
		twice(checkback.Rollback, half(newAttempt(t), o.OrderNo, 0)) // another attempt won, however young this one is
		twice(checkback.Rollback, half(newAttempt(t), o.OrderNo, time.Hour))
		twice(checkback.Unknown, half(lost, "LOST", 0))
		require.Zero(t, rows(t, db, "status = 'VOID'"), "no tombstone for superseded or young ones")
		twice(checkback.Rollback, half(lost, "LOST", time.Hour)) // buried, then the tombstone
		twice(checkback.Rollback, half(lost, "LOST", 0))         // the tombstone counts at any age
		require.Equal(t, 1, rows(t, db, "status = 'VOID' AND msg_id = ?", lost.MsgID))
		c.counted(t, map[string]int{
			"commit row": 4, "rollback superseded": 4, "unknown young": 2, "rollback buried": 1, "rollback tombstone": 3,
		})
	})
}

func TestGraceBoundary(t *testing.T) {
	t.Parallel()
	c := newChecker(t, newSQLite(t).open(t, database.Options{}))
	for age, want := range map[time.Duration]checkback.Answer{
		-time.Hour:                 checkback.Unknown, // the sender's clock is ahead
		0:                          checkback.Unknown,
		grace / 2:                  checkback.Unknown, // as near as a pause of the machine allows
		grace:                      checkback.Rollback,
		grace + time.Millisecond:   checkback.Rollback,
		100 * 365 * 24 * time.Hour: checkback.Rollback,
	} {
		require.Equal(t, want, c.Check(t.Context(), half(newAttempt(t), "X", age)), "%v", age)
	}
	require.Equal(t, checkback.Rollback, c.Check(t.Context(), checkback.Half{MsgID: newAttempt(t).MsgID, Type: order.EventCreated}), "no born time is old")
}

func TestUnknownType(t *testing.T) {
	t.Parallel()
	db := newSQLite(t).open(t, database.Options{})
	c := newChecker(t, db)
	o, err := create(t, attempts{db: db, at: newAttempt(t)})
	require.NoError(t, err)
	for _, typ := range []string{"", "order.exploded", "ORDER.CREATED"} {
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), checkback.Half{MsgID: o.MsgID, Type: typ, BizNo: o.OrderNo}))
	}
	c.counted(t, map[string]int{"unknown unknown_type": 3})
	require.Zero(t, rows(t, db, "status = 'VOID'"))
}

// R30: the local transaction is still open when an old half message is checked.
func TestLocalTransactionStillOpen(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.open(t, database.Options{})
		c := newChecker(t, e.open(t, database.Options{LockWait: time.Second}))
		at := newAttempt(t)
		o, err := create(t, attempts{db: db, at: at, inside: func() {
			began := time.Now()
			require.Equal(t, checkback.Unknown, c.Check(context.Background(), half(at, "X", time.Hour)))
			require.Less(t, time.Since(began), wait/2)
		}})
		require.NoError(t, err)
		require.Equal(t, checkback.Commit, c.Check(t.Context(), half(at, o.OrderNo, time.Hour)))
		c.counted(t, map[string]int{"unknown error": 1, "commit row": 1})
	})
}

// The local transaction commits between the look and the tombstone.
func TestCommittedBeforeTheTombstone(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.open(t, database.Options{})
		at := newAttempt(t)
		var armed atomic.Bool
		checks := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if strings.HasPrefix(query, "INSERT") && armed.CompareAndSwap(true, false) {
				_, err := create(t, attempts{db: db, at: at})
				return err
			}
			return nil
		}}})
		c := newChecker(t, checks)
		armed.Store(true)
		require.Equal(t, checkback.Commit, c.Check(t.Context(), half(at, "X", time.Hour)))
		require.False(t, armed.Load())
		c.counted(t, map[string]int{"commit row": 1})
	})
}

// Another instance's tombstone comes between the look and our own.
func TestBuriedByAnotherInstance(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		other := newChecker(t, e.open(t, database.Options{}))
		h := half(newAttempt(t), "X", time.Hour)
		var armed atomic.Bool
		c := newChecker(t, e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if strings.HasPrefix(query, "INSERT") && armed.CompareAndSwap(true, false) {
				require.Equal(t, checkback.Rollback, other.Check(context.Background(), h))
			}
			return nil
		}}}))
		armed.Store(true)
		require.Equal(t, checkback.Rollback, c.Check(t.Context(), h))
		c.counted(t, map[string]int{"rollback tombstone": 1})
		other.counted(t, map[string]int{"rollback buried": 1})
	})
}

// A database error in any statement of a check is UNKNOWN, whatever the truth is.
func TestDatabaseErrorIsUnknown(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		down := errors.New("injected: connection lost")
		for _, place := range []string{"before", "after"} {
			for statement := range 3 { // by msg_id, by order_no, the tombstone
				var n atomic.Int64
				n.Store(-1000)
				hook := func(op database.Op, _ string) error {
					if op != database.OpBegin && op != database.OpCommit && n.Add(1) == int64(statement)+1 {
						return down
					}
					return nil
				}
				hooks := database.Hooks{Before: hook}
				if place == "after" {
					hooks = database.Hooks{After: hook}
				}
				c := newChecker(t, e.open(t, database.Options{Hooks: hooks}))
				h := half(newAttempt(t), "X", time.Hour)
				n.Store(0)
				require.Equal(t, checkback.Unknown, c.Check(t.Context(), h), "%s statement %d", place, statement)
				require.Equal(t, checkback.Rollback, c.Check(t.Context(), h), "the next check decides")
			}
		}
	})
}

func TestDatabaseClosed(t *testing.T) {
	t.Parallel()
	db, err := database.OpenSQLite(t.TempDir()+"/order.db", database.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Migrate(t.Context(), order.Migrations()))
	o, err := create(t, attempts{db: db, at: newAttempt(t)})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	c := newChecker(t, db)
	require.Equal(t, checkback.Unknown, c.Check(t.Context(), checkback.Half{MsgID: o.MsgID, Type: order.EventCreated, BizNo: o.OrderNo}))
	c.counted(t, map[string]int{"unknown error": 1})
}

// The database answers, but too late: the answer of a check that has run out of time is not used.
func TestDeadlineWhenTheDatabaseIsSlow(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.open(t, database.Options{})
		at := newAttempt(t)
		o, err := create(t, attempts{db: db, at: at})
		require.NoError(t, err)
		c := checkerOf(t, late{order.NewCreatedResolver(db)}, func(cfg *checkback.Config) { cfg.Deadline = 50 * time.Millisecond })
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(at, o.OrderNo, time.Hour)))
		c.counted(t, map[string]int{"unknown error": 1})
	})
}

// late asks its database when the time of the check is over.
type late struct{ checkback.Resolver }

func (l late) Find(ctx context.Context, h checkback.Half) (checkback.Finding, error) {
	<-ctx.Done()
	return l.Resolver.Find(ctx, h)
}

// The tombstone waits for a lock much longer than the check may take.
func TestDeadlineWhileWaitingForALock(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		db := e.open(t, database.Options{})
		c := newChecker(t, e.open(t, database.Options{LockWait: 10 * wait}), func(cfg *checkback.Config) { cfg.Deadline = 100 * time.Millisecond })
		at := newAttempt(t)
		_, err := create(t, attempts{db: db, at: at, inside: func() {
			began := time.Now()
			require.Equal(t, checkback.Unknown, c.Check(context.Background(), half(at, "X", time.Hour)))
			require.Less(t, time.Since(began), wait)
		}})
		require.NoError(t, err)
		require.Equal(t, checkback.Commit, newChecker(t, db).Check(t.Context(), half(at, "X", time.Hour)), "nothing was buried")
	})
}

func TestCallerGone(t *testing.T) {
	t.Parallel()
	c := newChecker(t, newSQLite(t).open(t, database.Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, checkback.Unknown, c.Check(ctx, half(newAttempt(t), "X", time.Hour)))
}

// fake is a resolver that does what it is told.
type fake struct {
	find func() (checkback.Finding, error)
	bury func() error
}

func (f fake) Find(context.Context, checkback.Half) (checkback.Finding, error) { return f.find() }
func (f fake) Bury(context.Context, checkback.Half) error                      { return f.bury() }

func TestPanicIsUnknown(t *testing.T) {
	t.Parallel()
	absent := func() (checkback.Finding, error) { return checkback.Absent, nil }
	for name, r := range map[string]fake{
		"in Find": {find: func() (checkback.Finding, error) { panic("out of cheese") }},
		"in Bury": {find: absent, bury: func() error { panic(errors.New("out of cheese")) }},
		"nil map": {find: func() (checkback.Finding, error) { return checkback.Absent, writeNil(nil) }},
	} {
		c := checkerOf(t, r)
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(newAttempt(t), "X", time.Hour)), name)
		c.counted(t, map[string]int{"unknown panic": 1})
	}
	// Also when the answer was decided already.
	c := checkerOf(t, fake{find: func() (checkback.Finding, error) { return checkback.Committed, nil }}, func(cfg *checkback.Config) {
		cfg.Hooks.BeforeAnswer = func() { panic("out of cheese") }
	})
	require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(newAttempt(t), "X", time.Hour)))
	c.counted(t, map[string]int{"unknown panic": 1})
}

// A key that is taken by a row that nobody sees decides nothing.
func TestTakenButNotSeen(t *testing.T) {
	t.Parallel()
	c := checkerOf(t, fake{find: func() (checkback.Finding, error) { return checkback.Absent, nil }, bury: func() error { return checkback.ErrTaken }})
	require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(newAttempt(t), "X", time.Hour)))
	c.counted(t, map[string]int{"unknown error": 1})
}

// A type that is registered late is never guessed before, and decided from then on.
func TestRegister(t *testing.T) {
	t.Parallel()
	c := checkerOf(t, fake{})
	committed := fake{find: func() (checkback.Finding, error) { return checkback.Committed, nil }}
	h := checkback.Half{MsgID: newAttempt(t).MsgID, Type: "stock.taken", BizNo: "X"}
	require.Equal(t, checkback.Unknown, c.Check(t.Context(), h))
	require.NoError(t, c.Register("stock.taken", committed))
	require.Equal(t, checkback.Commit, c.Check(t.Context(), h))
	c.counted(t, map[string]int{"unknown unknown_type": 1, "commit row": 1})
	for _, typ := range []string{"stock.taken", order.EventCreated} {
		require.ErrorContains(t, c.Register(typ, committed), typ, "one type, one resolver")
	}
	require.Error(t, c.Register("", committed))
	require.Error(t, c.Register("x", nil))
}

// Resolvers are registered while checks are answered.
func TestRegisterWhileChecking(t *testing.T) {
	t.Parallel()
	c := checkerOf(t, fake{})
	halfID := newAttempt(t).MsgID
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			typ := fmt.Sprintf("stock.%d", i)
			if err := c.Register(typ, fake{find: func() (checkback.Finding, error) { return checkback.Committed, nil }}); err != nil {
				t.Error(err)
			}
			if got := c.Check(t.Context(), checkback.Half{MsgID: halfID, Type: typ}); got != checkback.Commit {
				t.Error(got)
			}
		})
	}
	wg.Wait()
}

// An error beside a finding wins: the finding is not believed.
func TestFindingWithAnError(t *testing.T) {
	t.Parallel()
	for _, finding := range []checkback.Finding{checkback.Absent, checkback.Committed, checkback.Void, checkback.Superseded, checkback.Finding(99)} {
		c := checkerOf(t, fake{find: func() (checkback.Finding, error) { return finding, errors.New("no") }})
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(newAttempt(t), "X", time.Hour)))
	}
}

// Nor is one that does not exist: no tombstone is made of it.
func TestFindingThatIsNone(t *testing.T) {
	t.Parallel()
	c := checkerOf(t, fake{find: func() (checkback.Finding, error) { return 99, nil }, bury: func() error { return nil }})
	require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(newAttempt(t), "X", time.Hour)))
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	cfg := checkback.Config{Resolvers: map[string]checkback.Resolver{"x": fake{}}, Registerer: reg}
	_, err := checkback.New(cfg)
	require.NoError(t, err)
	_, err = checkback.New(cfg)
	require.Error(t, err, "one registry, one checker")
}

// writeNil panics as a programming error does.
func writeNil(m map[string]int) error {
	m["x"] = 1
	return nil
}
