package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/faults"
)

// Each crash point in turn: the process kills itself there, starts again, and every order is credited exactly once.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	onEachSite(t, crashPoints)
}

func crashPoints(t *testing.T, s *site) {
	for point, expect := range map[string]struct {
		nth   int
		voids bool // a half was rolled back by its check
	}{
		faults.TxmsgBeforeHalf:        {nth: 4},
		faults.TxmsgAfterHalf:         {nth: 4, voids: true},
		faults.TxmsgBeforeLocalCommit: {nth: 4, voids: true},
		faults.TxmsgAfterLocalCommit:  {nth: 4},
		faults.TxmsgAfterEnd:          {nth: 4},
		faults.PointsBeforeCommit:     {nth: 4},
		faults.PointsAfterCommit:      {nth: 4},
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := s.another(t)
			all := wishes(8, everyTxmsg)
			allow := []string{faults.AllowVariable + "=1"}
			p := s.serve(t, allow, "--fault", fmt.Sprintf("%s=kill@%d", point, expect.nth))
			require.NotNil(t, p)
			for _, w := range all { // one at a time: which order meets the crash is certain
				if _, err := w.post(p.api); err != nil {
					break
				}
			}
			p.awaitKilled(t)

			p = s.serve(t, nil)
			require.NotNil(t, p)
			for _, w := range all {
				w.fulfil(t, p.api)
			}
			// The books are whole before the broker has asked. (A slow machine may void other attempts, which are made
			// again: only too few tombstones are wrong.)
			if expect.voids {
				require.Eventually(t, func() bool { return s.readBooks(t).voids > 0 }, wait, 5*tick, "no half message was voided")
			}
			s.requireWhole(t, p, all)
		})
	}
}

// The process that answers a check dies before its answer leaves; the next one is asked again.
func TestCrashBeforeCheckAnswer(t *testing.T) {
	t.Parallel()
	onEachSite(t, crashBeforeCheckAnswer)
}

func crashBeforeCheckAnswer(t *testing.T, s *site) {
	all := wishes(8, everyTxmsg) // on a busy machine some may go by the outbox
	allow := []string{faults.AllowVariable + "=1"}
	p := s.serve(t, allow, "--fault", faults.TxmsgAfterLocalCommit+"=kill@3")
	require.NotNil(t, p)
	for _, w := range all {
		if _, err := w.post(p.api); err != nil {
			break
		}
	}
	p.awaitKilled(t)
	// It may die before it says that it is ready.
	if p = s.serve(t, allow, "--fault", faults.CheckbackBeforeAnswer+"=kill@1"); p != nil {
		p.awaitKilled(t)
	}
	p = s.serve(t, nil)
	require.NotNil(t, p)
	for _, w := range all {
		w.fulfil(t, p.api)
	}
	s.requireWhole(t, p, all)
}

// The drill of the issue: orders from many clients, kill -9 at seeded moments while requests are in flight. Clients
// repeat their key until they have an answer.
func TestKillWhileRequestsAreInFlight(t *testing.T) {
	t.Parallel()
	onEachSite(t, killWhileRequestsAreInFlight)
}

func killWhileRequestsAreInFlight(t *testing.T, s *site) {
	const seed, orders = 20261129, 300
	rnd := rand.New(rand.NewPCG(seed, 0))
	all := cancelling(4, wishes(orders, everyTxmsg))
	// Every round arms a seeded crash point, so that halves are certainly open at some of the deaths, and kills the
	// process from outside after a seeded number of answers if that comes first.
	points := append(faults.Points(), "")
	allow := []string{faults.AllowVariable + "=1"}
	rounds := 0
	for pending := all; len(pending) > 0; rounds++ {
		var args []string
		if point := points[rnd.IntN(len(points))]; point != "" {
			args = []string{"--fault", fmt.Sprintf("%s=kill@%d", point, 1+rnd.IntN(30))}
		}
		after := 5 + rnd.IntN(60)
		if p := s.serve(t, allow, args...); p != nil { // else it died before it was ready
			pending = sendUntilKilled(p, pending, after)
			p.kill()
		}
	}
	p := s.serve(t, nil)
	require.NotNil(t, p)
	t.Logf("seed %d: %d orders, killed %d times", seed, orders, rounds)
	seen := map[string]string{}
	for _, w := range all { // every client that repeats its key gets its one order
		a := w.fulfil(t, p.api)
		require.Empty(t, seen[a.OrderNo], "order %s answers two keys", a.OrderNo)
		seen[a.OrderNo] = w.Key
	}
	s.requireWhole(t, p, all)
}

// sendUntilKilled sends from eight clients at once and kills the process after so many answers, while the other
// clients' requests are in flight. It returns the wishes that have no answer yet.
func sendUntilKilled(p *process, pending []wish, after int) (rest []wish) {
	var mu sync.Mutex
	next, answers, dead := 0, 0, false
	take := func() (wish, bool) {
		mu.Lock()
		defer mu.Unlock()
		if dead || next == len(pending) {
			return wish{}, false
		}
		next++
		return pending[next-1], true
	}
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for w, ok := take(); ok; w, ok = take() {
				a, err := w.once(p.api)
				mu.Lock()
				if err == nil && a.made() {
					answers++
					if answers == after {
						dead = true
						_ = p.cmd.Process.Kill()
					}
				} else {
					rest = append(rest, w)
				}
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	return append(rest, pending[next:]...)
}
