package checkback_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
)

// Two instances check an old half message while its local transaction runs, from handles of their own. Whatever the
// timing, every COMMIT that was answered has its order and no ROLLBACK has one.
func TestAnswersAgreeWithTheTable(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		const rounds = 150
		// The checks fail on a lock at once, so that a round is short; UNKNOWN is a right answer then.
		db := e.open(t, database.Options{})
		checkers := []checker{
			newChecker(t, e.open(t, database.Options{LockWait: 5 * time.Millisecond})),
			newChecker(t, e.open(t, database.Options{LockWait: 5 * time.Millisecond})),
		}
		seen := map[string]int{}
		for range rounds {
			answers, committed := race(t, db, checkers, rand.N(4*time.Millisecond), rand.N(4*time.Millisecond))
			for _, a := range answers {
				seen[fmt.Sprintf("%v, committed %v", a, committed)]++
			}
		}
		t.Log(seen)
		require.Zero(t, seen["commit, committed false"])
		require.Zero(t, seen["rollback, committed true"])
		require.NotZero(t, seen["commit, committed true"], "the local transaction was faster in some rounds")
		require.NotZero(t, seen["rollback, committed false"], "a check was faster in some rounds")
	})
}

// race runs a local transaction and two checks of it, delayed a little, and asks once more at the end.
func race(t *testing.T, db *database.DB, checkers []checker, delayTx, delayCheck time.Duration) (answers []checkback.Answer, committed bool) {
	t.Helper()
	at := newAttempt(t)
	h := half(at, strings.ToUpper(at.MsgID), time.Hour)
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := make(chan struct{})
	after := func(d time.Duration) {
		<-start
		<-time.After(d)
	}
	var err error
	wg.Go(func() {
		after(delayTx)
		_, err = create(t, attempts{db: db, at: at})
	})
	for _, c := range checkers {
		wg.Go(func() {
			after(delayCheck)
			for range 3 {
				a := c.Check(context.Background(), h)
				mu.Lock()
				answers = append(answers, a)
				mu.Unlock()
			}
		})
	}
	close(start)
	wg.Wait()
	if err != nil {
		require.ErrorIs(t, err, halfbox.ErrRolledBack)
		require.True(t, errors.Is(err, halfbox.ErrVoided) || database.IsLockConflict(err), "%v", err)
	}
	for _, c := range checkers { // now that nothing is open, both decide and agree
		a := c.Check(context.Background(), h)
		require.NotEqual(t, checkback.Unknown, a)
		answers = append(answers, a)
	}
	committed = rows(t, db, "msg_id = ? AND status = 'CREATED'", at.MsgID) == 1
	require.Equal(t, err == nil, committed)
	require.Equal(t, 1, rows(t, db, "msg_id = ?", at.MsgID), "an order or a tombstone, one of them")
	return answers, committed
}
