package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
)

// txAttempts limits how often InTx runs a transaction that lock conflicts keep undoing.
const txAttempts = 5

// InTx runs fn in one transaction with an explicit BEGIN and COMMIT.
//
// A lock conflict (deadlock, lock wait) rolls the whole transaction back and repeats it, fn included, up to five
// times while ctx allows, also when fn took no notice of it. ctx bounds everything up to COMMIT; COMMIT itself is never interrupted by ctx, because
// an interrupted COMMIT has no known outcome. A panic in fn rolls back and goes on.
//
// The error is nil (COMMIT confirmed), wraps halfbox.ErrUnknown (COMMIT's answer was lost) or wraps
// halfbox.ErrRolledBack and the cause (everything else).
func (db *DB) InTx(ctx context.Context, fn func(tx *gorm.DB) error) error {
	for attempt := 1; ; attempt++ {
		err := db.inTxOnce(ctx, fn)
		if err == nil || errors.Is(err, halfbox.ErrUnknown) || !IsLockConflict(err) || attempt == txAttempts {
			return err
		}
		if !pause(ctx, 10<<attempt) {
			return err
		}
	}
}

// pause waits for 1 to most milliseconds, at random, or two that have met would meet again. It returns false when ctx
// ends before.
func pause(ctx context.Context, most int) bool {
	t := time.NewTimer(time.Duration(1+rand.IntN(most)) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (db *DB) inTxOnce(ctx context.Context, fn func(tx *gorm.DB) error) (err error) {
	conn, err := db.SQL().Conn(ctx)
	if err != nil {
		return halfbox.RolledBack(err)
	}
	defer conn.Close()

	// database/sql rolls a transaction back when its context ends, also in the middle of COMMIT. So the
	// transaction gets a context of its own that follows ctx up to COMMIT only.
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopFollowing := context.AfterFunc(ctx, cancel)
	defer stopFollowing()

	sqlTx, err := conn.BeginTx(txCtx, nil)
	if err != nil {
		return halfbox.RolledBack(cause(ctx, err))
	}
	done := false
	defer func() {
		if !done { // fn panicked
			rollback(conn, sqlTx)
		}
	}()
	local := &localTx{Tx: sqlTx, unfollow: stopFollowing}
	err = fn(db.session(ctx, local))
	if err == nil && local.misused.Load() {
		err = errNotYours
	}
	if !IsLockConflict(err) {
		err = errors.Join(err, local.lost()) // nil when both are
	}
	if err != nil {
		done = true
		if ended := rollback(conn, sqlTx); ended && local.raw {
			return halfbox.Unknown(errors.Join(errNotYours, err))
		}
		return halfbox.RolledBack(cause(ctx, err))
	}
	if !stopFollowing() && !local.raw || ctx.Err() != nil {
		done = true
		if ended := rollback(conn, sqlTx); ended && local.raw {
			return halfbox.Unknown(errNotYours)
		}
		return halfbox.RolledBack(context.Cause(ctx))
	}
	done = true
	err = sqlTx.Commit()
	if err == nil {
		for _, f := range local.committed {
			f()
		}
		return nil
	}
	if local.raw && errors.Is(err, sql.ErrTxDone) {
		return halfbox.Unknown(errNotYours)
	}
	discard(conn)
	if commitRefused(err) {
		return halfbox.RolledBack(err)
	}
	return halfbox.Unknown(err)
}

// session is a gorm handle whose statements run in local.
func (db *DB) session(ctx context.Context, local *localTx) *gorm.DB {
	tx := db.Write.Session(&gorm.Session{NewDB: true, Context: ctx})
	tx.Statement.ConnPool = local
	return tx
}

var errNotYours = errors.New("a local transaction must not be committed or rolled back by its function")

// localTx is the transaction as fn has it: everything but its end. An fn that could commit and then return an error
// would make InTx report what is not true.
type localTx struct {
	*sql.Tx
	misused   atomic.Bool
	unfollow  func() bool           // see inTxOnce
	raw       bool                  // fn has Tx itself, see SQLLocal
	committed []func()              // see OnCommit
	conflict  atomic.Pointer[error] // see lost
}

// OnCommit calls f once COMMIT of InTx's transaction tx is confirmed, before InTx returns. A transaction that is rolled
// back, or whose COMMIT's answer is lost, never calls it. Call it from the function given to InTx, in its goroutine.
func OnCommit(tx *gorm.DB, f func()) {
	local, ok := tx.Statement.ConnPool.(*localTx)
	if !ok {
		panic("database: OnCommit outside of InTx")
	}
	local.committed = append(local.committed, f)
}

// Commit refuses.
func (t *localTx) Commit() error {
	t.misused.Store(true)
	return errNotYours
}

// Rollback refuses.
func (t *localTx) Rollback() error { return t.Commit() }

// rollback ends the transaction; a connection that cannot do it is closed, which makes the server do it. It reports
// whether the transaction had been ended before.
func rollback(conn *sql.Conn, sqlTx *sql.Tx) (ended bool) {
	err := sqlTx.Rollback()
	if ended = errors.Is(err, sql.ErrTxDone); err != nil && !ended {
		discard(conn)
	}
	return ended
}

// discard takes the connection out of the pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}

// cause prefers the reason why ctx ended over the driver's word for it.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}
