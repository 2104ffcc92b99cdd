// Package conformance is the one suite that every delivery strategy passes: it states the contract of PublishInTx
// as tests. A strategy calls Run with a function that sets it up on a database of its own.
package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// Publisher is the contract.
type Publisher interface {
	PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error)
}

// Strategy is a strategy under test, running.
type Strategy struct {
	Publisher Publisher
	// DB is the database of its local transactions; the suite makes a table of its own in it.
	DB *database.DB
	// Delivered returns the bodies that the destination has received under a message id so far.
	Delivered func(msgID string) ([][]byte, error)
	// Delivery is what a receipt must say.
	Delivery halfbox.Delivery
	// Inserts is how many INSERTs an event may cost, the local function's own included.
	Inserts int
	// Settle is how long a message of a transaction that did not commit would need to arrive in the worst case,
	// check-backs included.
	Settle time.Duration
}

// Setup starts a strategy for one test. hooks must see every statement of its database.
type Setup func(t *testing.T, hooks database.Hooks) Strategy

const (
	wait = 15 * time.Second
	tick = 5 * time.Millisecond
)

// Run runs the suite.
func Run(t *testing.T, setup Setup) {
	for name, test := range map[string]func(*testing.T, Setup){
		"committed is delivered":               committed,
		"failed local delivers nothing":        failedLocal,
		"panic is passed on":                   panicked,
		"local ends its goroutine":             goexit,
		"caller gone before the start":         callerGone,
		"caller gone in the local transaction": callerGoneInside,
		"lock conflict repeats the attempt":    lockConflict,
		"commit answer lost":                   commitAnswerLost,
		"commit lost":                          commitLost,
		"commit refused":                       commitRefused,
		"voided attempt is made again":         voided,
		"voided twice gives up":                voidedTwice,
		"statements":                           statements,
		"many at once":                         manyAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, setup)
		})
	}
}

// env is one running strategy with the suite's table.
type env struct {
	Strategy
	t *testing.T
}

func start(t *testing.T, setup Setup, hooks database.Hooks) env {
	e := env{Strategy: setup(t, hooks), t: t}
	require.NoError(t, e.DB.Write.Exec("CREATE TABLE conformance (fact VARCHAR(64) NOT NULL PRIMARY KEY, msg_id VARCHAR(64) NOT NULL UNIQUE, delivery VARCHAR(16) NOT NULL)").Error)
	return e
}

func newEvent() halfbox.Event {
	fact := uuid.NewString()
	return halfbox.Event{
		Type: "conformance.fact", Source: "/halfbox/conformance", Subject: fact, Time: time.Now(), DataSchema: "urn:halfbox:schema:conformance:1",
		AggregateVersion: 1, PartitionKey: fact, Data: json.RawMessage(fmt.Sprintf(`{"fact":%q}`, fact)),
	}
}

// insert is a local transaction's one row, which carries the attempt as an order's row does. On a slow machine a check
// may be faster.
func insert(tx *gorm.DB, ev halfbox.Event, at halfbox.Attempt) error {
	err := tx.Exec("INSERT INTO conformance (fact, msg_id, delivery) VALUES (?, ?, ?)", ev.Subject, at.MsgID, string(at.Delivery)).Error
	taken := database.UniqueKey{Table: "conformance", Name: "msg_id", Columns: []string{"msg_id"}}
	if taken.ViolatedBy(err) {
		return fmt.Errorf("%w: %w", halfbox.ErrVoided, err)
	}
	return err
}

// row returns the msg_id and delivery of a committed fact; empty when there is none.
func (e env) row(fact string) (msgID, delivery string) {
	e.t.Helper()
	var r struct{ MsgID, Delivery string }
	require.NoError(e.t, e.DB.Read.Raw("SELECT msg_id, delivery FROM conformance WHERE fact = ?", fact).Scan(&r).Error)
	return r.MsgID, r.Delivery
}

func (e env) bodies(msgID string) [][]byte {
	e.t.Helper()
	got, err := e.Delivered(msgID)
	require.NoError(e.t, err)
	return got
}

// requireDelivered waits for the message and checks that it states the event.
func (e env) requireDelivered(ev halfbox.Event, msgID string) {
	e.t.Helper()
	require.Eventually(e.t, func() bool { return len(e.bodies(msgID)) > 0 }, wait, tick, "message %s was not delivered", msgID)
	id, got, err := halfbox.Decode(e.bodies(msgID)[0])
	require.NoError(e.t, err)
	require.Equal(e.t, msgID, id)
	require.Equal(e.t, ev.Subject, got.Subject)
	require.JSONEq(e.t, string(ev.Data), string(got.Data))
}

// requireNothing asserts that none of the attempts was or will be delivered, and that no row is there.
func (e env) requireNothing(ev halfbox.Event, attempts ...string) {
	e.t.Helper()
	msgID, _ := e.row(ev.Subject)
	require.Empty(e.t, msgID, "no row may be there")
	require.Never(e.t, func() bool {
		for _, id := range attempts {
			if len(e.bodies(id)) > 0 {
				return true
			}
		}
		return false
	}, e.Settle, 10*tick, "a message of a transaction that did not commit was delivered")
}

func committed(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ev := newEvent()
	receipt, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, at halfbox.Attempt) error { return insert(tx, ev, at) })
	require.NoError(t, err)
	require.Equal(t, e.Delivery, receipt.Delivery)
	msgID, delivery := e.row(ev.Subject)
	require.Equal(t, receipt.MsgID, msgID)
	require.Equal(t, string(e.Delivery), delivery)
	require.Equal(t, uuid.Version(7), uuid.MustParse(msgID).Version())
	e.requireDelivered(ev, receipt.MsgID)
}

func failedLocal(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ev, cause := newEvent(), errors.New("no stock left")
	var at halfbox.Attempt
	_, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, a halfbox.Attempt) error {
		at = a
		require.NoError(t, insert(tx, ev, a))
		return cause
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, cause)
	e.requireNothing(ev, at.MsgID)
}

func panicked(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ev := newEvent()
	var at halfbox.Attempt
	require.PanicsWithValue(t, "out of cheese", func() {
		_, _ = e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, a halfbox.Attempt) error {
			at = a
			require.NoError(t, insert(tx, ev, a))
			panic("out of cheese")
		})
	})
	e.requireNothing(ev, at.MsgID)
	_, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, a halfbox.Attempt) error { return insert(tx, ev, a) })
	require.NoError(t, err, "the publisher and its connection go on")
}

// goexit is what t.FailNow does inside a local function: only deferred calls run. It must never look committed.
func goexit(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ev := newEvent()
	err := errors.New("PublishInTx did not return, which is right too")
	attempt := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err = e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, at halfbox.Attempt) error {
			attempt <- at.MsgID
			if err := insert(tx, ev, at); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		})
	}()
	<-done
	require.Error(t, err)
	e.requireNothing(ev, <-attempt)
	_, err = e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, at halfbox.Attempt) error { return insert(tx, ev, at) })
	require.NoError(t, err, "the publisher and its connection go on")
}

func callerGone(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ev := newEvent()
	_, err := e.Publisher.PublishInTx(ctx, ev, func(tx *gorm.DB, at halfbox.Attempt) error { return insert(tx, ev, at) })
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, context.Canceled)
	e.requireNothing(ev)
}

func callerGoneInside(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ctx, cancel := context.WithCancel(t.Context())
	ev := newEvent()
	var at halfbox.Attempt
	_, err := e.Publisher.PublishInTx(ctx, ev, func(tx *gorm.DB, a halfbox.Attempt) error {
		at = a
		defer cancel()
		return insert(tx, ev, a)
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, context.Canceled)
	e.requireNothing(ev, at.MsgID)
}

// lockConflict undoes the first two tries of the local transaction, as MySQL's deadlock and lock wait do.
func lockConflict(t *testing.T, setup Setup) {
	var armed atomic.Int32
	e := start(t, setup, database.Hooks{After: func(op database.Op, query string) error {
		if op != database.OpExec || query[:6] != "INSERT" || armed.Load() == 0 {
			return nil
		}
		return &mysql.MySQLError{Number: [...]uint16{0, 1213, 1205}[armed.Add(-1)+1], Message: "injected"}
	}})
	ev := newEvent()
	var ids []string
	armed.Store(2)
	receipt, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, at halfbox.Attempt) error {
		ids = append(ids, at.MsgID)
		return insert(tx, ev, at)
	})
	require.NoError(t, err)
	require.Equal(t, []string{receipt.MsgID, receipt.MsgID, receipt.MsgID}, ids, "three tries under one attempt")
	e.requireDelivered(ev, receipt.MsgID)
}

var errWire = errors.New("injected: connection lost")

// once returns a hook that fails the first statement of a kind after it was armed.
func once(kind database.Op, err error) (hook func(database.Op, string) error, arm func()) {
	var armed atomic.Bool
	return func(op database.Op, _ string) error {
		if op == kind && armed.CompareAndSwap(true, false) {
			return err
		}
		return nil
	}, func() { armed.Store(true) }
}

func commitAnswerLost(t *testing.T, setup Setup) {
	hook, arm := once(database.OpCommit, errWire)
	e := start(t, setup, database.Hooks{After: hook})
	ev := newEvent()
	var at halfbox.Attempt
	_, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, a halfbox.Attempt) error {
		at = a
		arm()
		return insert(tx, ev, a)
	})
	require.ErrorIs(t, err, halfbox.ErrUnknown)
	require.NotErrorIs(t, err, halfbox.ErrRolledBack)
	msgID, _ := e.row(ev.Subject)
	require.Equal(t, at.MsgID, msgID, "it did commit")
	e.requireDelivered(ev, at.MsgID)
}

func commitLost(t *testing.T, setup Setup) {
	hook, arm := once(database.OpCommit, errWire)
	e := start(t, setup, database.Hooks{Before: hook})
	ev := newEvent()
	var at halfbox.Attempt
	_, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, a halfbox.Attempt) error {
		at = a
		arm()
		return insert(tx, ev, a)
	})
	require.ErrorIs(t, err, halfbox.ErrUnknown)
	e.requireNothing(ev, at.MsgID)
}

func commitRefused(t *testing.T, setup Setup) {
	hook, arm := once(database.OpCommit, &mysql.MySQLError{Number: 3101, Message: "plugin instructed the server to rollback"})
	e := start(t, setup, database.Hooks{Before: hook})
	ev := newEvent()
	var at halfbox.Attempt
	_, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, a halfbox.Attempt) error {
		at = a
		arm()
		return insert(tx, ev, a)
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.NotErrorIs(t, err, halfbox.ErrUnknown)
	e.requireNothing(ev, at.MsgID)
}

func voided(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ev := newEvent()
	var ids []string
	receipt, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, at halfbox.Attempt) error {
		ids = append(ids, at.MsgID)
		if len(ids) == 1 {
			return fmt.Errorf("insert: %w", halfbox.ErrVoided)
		}
		return insert(tx, ev, at)
	})
	require.NoError(t, err)
	require.Len(t, ids, 2)
	require.NotEqual(t, ids[0], ids[1], "a voided attempt is never used again")
	require.Equal(t, ids[1], receipt.MsgID)
	e.requireDelivered(ev, receipt.MsgID)
	require.Empty(t, e.bodies(ids[0]))
}

func voidedTwice(t *testing.T, setup Setup) {
	e := start(t, setup, database.Hooks{})
	ev := newEvent()
	var ids []string
	_, err := e.Publisher.PublishInTx(t.Context(), ev, func(_ *gorm.DB, at halfbox.Attempt) error {
		ids = append(ids, at.MsgID)
		return halfbox.ErrVoided
	})
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorIs(t, err, halfbox.ErrVoided)
	require.Len(t, ids, 2)
	e.requireNothing(ev, ids...)
}

// statements counts what one event costs between BEGIN and COMMIT, and fails when a statement is added.
func statements(t *testing.T, setup Setup) {
	var mu sync.Mutex
	var seen []string
	var recording atomic.Bool
	e := start(t, setup, database.Hooks{Before: func(op database.Op, query string) error {
		if recording.Load() {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("%s %.12s", op, query))
		}
		return nil
	}})
	ev := newEvent()
	_, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, at halfbox.Attempt) error {
		recording.Store(true)
		return insert(tx, ev, at)
	})
	recording.Store(false)
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	want := []string{}
	for range e.Inserts {
		want = append(want, "exec INSERT INTO ")
	}
	want = append(want, "commit COMMIT")
	require.Equal(t, want, seen[:min(len(seen), len(want))])
}

func manyAtOnce(t *testing.T, setup Setup) {
	const callers, each = 8, 10
	e := start(t, setup, database.Hooks{})
	type published struct {
		ev    halfbox.Event
		msgID string
	}
	results := make(chan published, callers*each)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for n := range each {
				ev := newEvent()
				fail := n%3 == 2
				receipt, err := e.Publisher.PublishInTx(t.Context(), ev, func(tx *gorm.DB, at halfbox.Attempt) error {
					if err := insert(tx, ev, at); err != nil {
						return err
					}
					if fail {
						return errors.New("changed my mind")
					}
					return nil
				})
				switch {
				case fail && !errors.Is(err, halfbox.ErrRolledBack):
					t.Errorf("want rolled back, got %v", err)
				case !fail && err != nil:
					t.Errorf("want committed, got %v", err)
				case !fail:
					results <- published{ev, receipt.MsgID}
				}
			}
		})
	}
	wg.Wait()
	close(results)
	rows := 0
	for r := range results {
		e.requireDelivered(r.ev, r.msgID)
		rows++
	}
	var inTable int
	// A slow machine may void an attempt, which leaves its tombstone ("~...") and is made again.
	require.NoError(t, e.DB.Read.Raw("SELECT COUNT(*) FROM conformance WHERE fact NOT LIKE '~%'").Scan(&inTable).Error)
	require.Equal(t, rows, inTable)
}
