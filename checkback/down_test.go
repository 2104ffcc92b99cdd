package checkback_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/order"
)

// pinging is a fake resolver whose database can be down.
type pinging struct {
	fake
	ping func(ctx context.Context) error
}

func (p pinging) Ping(ctx context.Context) error { return p.ping(ctx) }

// A thousand half messages are checked while the database is down: it is asked by the first, not by each.
func TestUnknownAtOnceWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	var finds, pings atomic.Int32
	wire := errors.New("injected: connection refused")
	c := checkerOf(t, pinging{
		fake: fake{find: func() (checkback.Finding, error) {
			finds.Add(1)
			if down.Load() {
				return checkback.Absent, wire
			}
			return checkback.Committed, nil
		}},
		ping: func(context.Context) error {
			pings.Add(1)
			if down.Load() {
				return wire
			}
			return nil
		},
	})
	h := half(newAttempt(t), "X", time.Hour)
	require.Equal(t, checkback.Commit, c.Check(t.Context(), h))
	require.Zero(t, pings.Load(), "a database that is well is not asked for its health")

	down.Store(true)
	const halves = 1000
	began := time.Now()
	for range halves {
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), h))
	}
	rounds := int32(time.Since(began)/time.Second) + 1
	require.EqualValues(t, 2, finds.Load(), "one check found out")
	require.LessOrEqual(t, pings.Load(), rounds, "and one a second asks whether it is up again")

	down.Store(false)
	require.Eventually(t, func() bool { return c.Check(t.Context(), h) == checkback.Commit }, wait, 10*time.Millisecond)
}

// The same on a real server that a network hides: the loop is not held up for the deadline again and again.
func TestUnknownAtOnceWhileMySQLIsSilent(t *testing.T) {
	t.Parallel()
	dsn := enginetest.MySQL(t)
	direct, err := database.OpenMySQL(dsn, database.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, direct.Close()) })
	require.NoError(t, direct.Migrate(t.Context(), order.Migrations()))
	proxy, through := enginetest.MySQLProxy(t, dsn)
	var asked atomic.Int32
	checks, err := database.OpenMySQL(through, database.Options{LockWait: time.Second, MaxOpen: 2, Hooks: database.Hooks{
		Before: func(database.Op, string) error { asked.Add(1); return nil },
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, checks.Close()) })
	c := checkerOf(t, order.NewCreatedResolver(checks), func(cfg *checkback.Config) { cfg.Deadline = 500 * time.Millisecond })
	at := newAttempt(t)
	o, err := create(t, attempts{db: direct, at: at})
	require.NoError(t, err)
	h := half(at, o.OrderNo, time.Hour)
	committed := func() bool { return c.Check(t.Context(), h) == checkback.Commit }
	require.Eventually(t, committed, wait, tick)

	proxy.Blackhole()
	const halves = 100
	before := asked.Load()
	for range halves {
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), h))
	}
	require.Less(t, asked.Load()-before, int32(halves/4), "each check waited for its deadline")
	proxy.Pass()
	require.Eventually(t, committed, wait, 50*time.Millisecond)
}

// A half message that always fails, on a database that is well, must not keep the others from being answered: the
// broker would ask in the same order every time, and give the others up.
func TestOneFailingHalfDoesNotSilenceTheOthers(t *testing.T) {
	t.Parallel()
	poison, healthy := newAttempt(t), newAttempt(t)
	c := checkerOf(t, byMsgID{
		poison.MsgID:  errors.New("injected: column does not exist"),
		healthy.MsgID: nil,
	})
	for range 5 {
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), half(poison, "X", time.Hour)))
		require.Equal(t, checkback.Commit, c.Check(t.Context(), half(healthy, "Y", time.Hour)))
	}
	c.counted(t, map[string]int{"unknown error": 5, "commit row": 5})
}

// byMsgID is a resolver that finds every attempt, or fails as it is told, on a database that is well.
type byMsgID map[string]error

func (b byMsgID) Find(_ context.Context, h checkback.Half) (checkback.Finding, error) {
	return checkback.Committed, b[h.MsgID]
}
func (b byMsgID) Bury(context.Context, checkback.Half) error { return nil }
func (b byMsgID) Ping(context.Context) error                 { return nil }

// A resolver that ignores its context is left behind, and only so many of them.
func TestResolverThatHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	var inside atomic.Int32
	c := checkerOf(t, fake{find: func() (checkback.Finding, error) {
		inside.Add(1)
		<-release
		return checkback.Committed, nil
	}}, func(cfg *checkback.Config) {
		cfg.Deadline = 10 * time.Millisecond
		cfg.Resolvers["other"] = fake{find: func() (checkback.Finding, error) { return checkback.Committed, nil }}
	})
	h := half(newAttempt(t), "X", time.Hour)
	for inside.Load() < 4 {
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), h))
	}
	// A database that was silent is asked again after a second.
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		require.Equal(t, checkback.Unknown, c.Check(t.Context(), h))
	}
	require.LessOrEqual(t, inside.Load(), int32(4), "goroutines pile up")
	other := h
	other.Type = "other"
	require.Eventually(t, func() bool { return c.Check(t.Context(), other) == checkback.Commit }, wait, tick, "another event type has a resolver of its own")
}
