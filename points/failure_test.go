package points_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/points"
)

var errDown = errors.New("injected: database is down")

// breaker fails the n-th statement after it was armed, and counts them.
type breaker struct {
	mu      sync.Mutex
	seen    []string
	failing int // 0: none
}

func (b *breaker) arm(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen, b.failing = nil, n
}

func (b *breaker) hook(op database.Op, query string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, fmt.Sprintf("%s %.30s", op, query))
	if op != database.OpRollback && len(b.seen) == b.failing {
		return errDown
	}
	return nil
}

func (b *breaker) statements() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
}

// Each statement of a booking fails once, before it ran or with its answer taken away.
func TestDatabaseErrorInEachStatement(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		for place, hooks := range map[string]func(b *breaker) database.Hooks{
			"before": func(b *breaker) database.Hooks { return database.Hooks{Before: b.hook} },
			"after":  func(b *breaker) database.Hooks { return database.Hooks{After: b.hook} },
		} {
			b := &breaker{}
			r := newRig(t, e.open(t, database.Options{Hooks: hooks(b)}), points.Hooks{})
			user := map[string]int64{"before": 1, "after": 2}[place]
			b.arm(0)
			r.handle(points.Credited, newFact(user, 100).message(t))
			clean := b.statements()
			require.Len(t, clean, 6, "begin, account, lock, record, balance, commit: %v", clean)
			for n := 1; n <= len(clean); n++ {
				m := newFact(user, 100).message(t)
				b.arm(n)
				_, err := r.Handle(t.Context(), m)
				require.ErrorIs(t, err, errDown, "%s %s", place, clean[n-1])
				b.arm(0)
				answerLost := place == "after" && strings.HasPrefix(clean[n-1], "commit")
				require.Equal(t, strings.HasPrefix(clean[n-1], "commit"), errors.Is(err, halfbox.ErrUnknown))
				want := points.Credited
				if answerLost {
					want = points.DuplicateMessage
					r.requireBalance(user, int64(n+1), n+1)
				} else {
					r.requireBalance(user, int64(n), n) // nothing was booked
				}
				r.handle(want, m)
				r.requireBalance(user, int64(n+1), n+1)
			}
			require.Empty(t, r.deadLetters())
		}
	})
}

// The look at what is booked already, and the dead letter itself, may fail too.
func TestDatabaseErrorAfterADuplicate(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		b := &breaker{}
		r := newRig(t, e.open(t, database.Options{Hooks: database.Hooks{Before: b.hook}}), points.Hooks{})
		f := newFact(7, 500)
		r.handle(points.Credited, f.message(t))
		f.amount = 600
		b.arm(0)
		r.handle(points.Conflict, f.message(t))
		all := len(b.statements())
		for n := 1; n <= all; n++ {
			if strings.HasPrefix(b.statements()[n-1], "rollback") {
				continue
			}
			b.arm(n)
			outcome, err := r.Handle(t.Context(), f.message(t))
			require.ErrorIs(t, err, errDown, "%d", n)
			require.Empty(t, outcome)
			b.arm(0)
			r.handle(points.Conflict, f.message(t))
		}
		r.requireBalance(7, 5, 1)
	})
}

func TestDeadLetterCannotBeKept(t *testing.T) {
	t.Parallel()
	b := &breaker{}
	r := newRig(t, newSQLite(t).open(t, database.Options{Hooks: database.Hooks{Before: b.hook}}), points.Hooks{})
	poison := points.Message{MsgID: "poison", Topic: topic, Body: []byte("x")}
	b.arm(1)
	_, err := r.Handle(t.Context(), poison)
	require.ErrorIs(t, err, errDown, "a poison that is not kept must not be acknowledged")
	r.counted(nil)
	b.arm(0)
	r.handle(points.DeadLetter, poison)
}

func TestCrashPoints(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	m := newFact(7, 500).message(t)
	crash := func() { panic("killed") }
	require.Panics(t, func() { _, _ = newRig(t, db, points.Hooks{BeforeCommit: crash}).Handle(t.Context(), m) })
	newRig(t, db, points.Hooks{}).requireBalance(7, 0, 0)
	require.Panics(t, func() { _, _ = newRig(t, db, points.Hooks{AfterCommit: crash}).Handle(t.Context(), m) })
	r := newRig(t, db, points.Hooks{})
	r.requireBalance(7, 5, 1)
	r.handle(points.DuplicateMessage, m)
	r.requireBalance(7, 5, 1)
}

func TestClosedDatabase(t *testing.T) {
	t.Parallel()
	db, err := database.OpenSQLite(t.TempDir()+"/points.db", database.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Migrate(t.Context(), points.Migrations()))
	r := newRig(t, db, points.Hooks{})
	require.NoError(t, db.Close())
	for _, m := range []points.Message{newFact(7, 500).message(t), {MsgID: "poison", Topic: topic, Body: []byte("x")}} {
		_, err := r.Handle(t.Context(), m)
		require.Error(t, err)
	}
	r.counted(nil)
}

func TestNewHandlerRefusesAnIncompleteConfig(t *testing.T) {
	t.Parallel()
	_, err := points.NewHandler(points.HandlerConfig{Consumer: consumer})
	require.Error(t, err)
	_, err = points.NewHandler(points.HandlerConfig{DB: newSQLite(t).db(t)})
	require.Error(t, err)
}
