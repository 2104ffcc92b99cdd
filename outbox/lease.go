package outbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// lease is the right of one claim to send its records. The database decides who owns a row; the lease knows, on
// the careful side, how long this process may rely on it. It is safe for concurrent use.
type lease struct {
	store  store
	owner  string
	term   time.Duration
	margin time.Duration // given up at the end, for clocks that run at different speeds
	stmt   time.Duration // limit of one statement
	every  time.Duration // between two renewals
	miss   func(op string, n int)

	mu   sync.Mutex // held while a statement runs, so that renewals and write-backs do not cross
	held map[int64]struct{}
	// unsure are held rows whose write-back failed and is being repeated: it may have taken effect.
	unsure map[int64]struct{}
	// until is where the lease ends by the monotonic clock, untilWall the same by the wall clock.
	until, untilWall time.Time
	// renewUntil is when an overdue send makes the lease stop being renewed; zero while nothing is being sent.
	renewUntil time.Time
}

func (l *lease) start(c claim) {
	l.owner, l.held, l.unsure = c.owner, make(map[int64]struct{}, len(c.rows)), map[int64]struct{}{}
	for _, r := range c.rows {
		l.held[r.id] = struct{}{}
	}
	l.extend(c.since)
}

// extend says that the database has written the term of the lease after since.
func (l *lease) extend(since time.Time) {
	l.until = since.Add(l.term - l.margin)
	l.untilWall = l.until.Round(0)
}

// covers reports whether the lease lasts for d more.
func (l *lease) covers(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lasts(d)
}

// lasts is covers under the lock. A jump of the wall clock or a suspended machine, which the monotonic clock does not
// see, ends the lease early.
func (l *lease) lasts(d time.Duration) bool {
	end := time.Now().Add(d)
	return !end.After(l.until) && !end.Round(0).After(l.untilWall)
}

// ensure makes the lease cover d, by a renewal if need be, and reports whether it does.
func (l *lease) ensure(ctx context.Context, d time.Duration) bool {
	if l.covers(d) {
		return true
	}
	return l.renew(ctx) == nil && l.covers(d)
}

// begin returns those of rows that may be sent now, in a send of up to d: the ones still held, and none when the lease
// does not cover it. Renewals go on until twice d, so that a sink which is a little late does not lose its lease for
// it, and one which never returns does not keep its records for ever. All of it is decided under one lock: a renewal
// that waits for its answer in between may outlast the lease.
func (l *lease) begin(rows []row, d time.Duration) []row {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.lasts(d) {
		return nil
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool {
		_, ok := l.held[r.id]
		return !ok
	})
	if len(rows) > 0 {
		l.renewUntil = time.Now().Add(2 * d)
	}
	return rows
}

// end says that the send is over.
func (l *lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewUntil = time.Time{}
}

// heldIDs returns the ids still held, sorted.
func (l *lease) heldIDs() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.held))
}

// forget leaves rows to their expiry: nothing is known about them.
func (l *lease) forget(rows []row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		delete(l.held, r.id)
	}
}

// keep renews the lease until stop is called, which waits for the last renewal.
func (l *lease) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		wait := l.every
		timer := time.NewTimer(wait)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			// A renewal that fails is tried again well before the lease ends. Its error needs no handling here: the
			// next send sees that the lease is too short.
			wait = l.every
			if l.renew(ctx) != nil {
				wait = l.every / 4
			}
			timer.Reset(wait)
		}
	})
	return func() { cancel(); wg.Wait() }
}

// renew moves the lease of everything held. Rows that are no longer ours are dropped and counted as misses.
func (l *lease) renew(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) == 0 || !l.renewUntil.IsZero() && time.Now().After(l.renewUntil) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.stmt)
	defer cancel()
	want := slices.Sorted(maps.Keys(l.held))
	since := time.Now()
	n, err := l.store.renew(ctx, l.owner, want, l.term)
	if err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	if n != int64(len(want)) {
		if err := l.findLost(ctx, want); err != nil {
			return fmt.Errorf("renew lease: %w", err)
		}
	}
	l.extend(since)
	return nil
}

// findLost drops and counts the rows of want that are no longer ours.
func (l *lease) findLost(ctx context.Context, want []int64) error {
	ours, err := l.store.withOwner(ctx, l.owner, StatusSending, want)
	if err != nil {
		return err
	}
	lost := 0
	for _, id := range want {
		if _, unsure := l.unsure[id]; !unsure && !slices.Contains(ours, id) {
			delete(l.held, id)
			lost++
		}
	}
	if lost > 0 {
		l.miss("renew", lost)
	}
	return nil
}

// transition is one write-back: a conditional UPDATE of rows held.
type transition struct {
	op string // label of the lease misses metric
	to Status
	// run writes it for ids and returns the affected rows.
	run func(ctx context.Context, ids []int64) (int64, error)
}

// settle writes t for want, however often the database has to be asked, for up to the term of a lease; hard ends it
// after the statement that runs. Rows that were no longer ours are counted as misses. Whatever the outcome, the
// rows are not held any more: after an error they are left to their expiry.
func (l *lease) settle(hard context.Context, want []int64, t transition) error {
	if len(want) == 0 {
		return nil
	}
	began, pause := time.Now(), 10*time.Millisecond
	for tries := 1; ; tries++ {
		err := l.trySettle(hard, want, t, tries > 1)
		if err == nil {
			return nil
		}
		if time.Since(began) > l.term || !sleep(hard, pause) {
			l.mu.Lock()
			l.drop(want)
			l.mu.Unlock()
			return fmt.Errorf("%s, gave up after %d tries: %w", t.op, tries, err)
		}
		pause = min(2*pause, time.Second)
	}
}

func (l *lease) trySettle(hard context.Context, want []int64, t transition, again bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// What has been sent is written back even when the relay is being stopped.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(hard), l.stmt)
	defer cancel()
	n, err := t.run(ctx, want)
	if err != nil {
		for _, id := range want {
			l.unsure[id] = struct{}{}
		}
		return err
	}
	missing := len(want) - int(n)
	if missing > 0 && again {
		if missing, err = l.unsettled(ctx, want, t.to); err != nil {
			return err
		}
	}
	if missing > 0 {
		l.miss(t.op, missing)
	}
	l.drop(want)
	return nil
}

// unsettled counts the rows that an earlier try with a lost answer has not settled either. A row in WAIT names no
// owner, so there it cannot be told; then none is counted.
func (l *lease) unsettled(ctx context.Context, want []int64, to Status) (int, error) {
	if to == StatusWait {
		return 0, nil
	}
	done, err := l.store.withOwner(ctx, l.owner, to, want)
	return len(want) - len(done), err
}

func (l *lease) drop(ids []int64) {
	for _, id := range ids {
		delete(l.held, id)
		delete(l.unsure, id)
	}
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
