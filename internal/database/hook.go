package database

import (
	"context"
	"database/sql/driver"
)

// Op is the kind of a statement that a hook sees.
type Op string

// The kinds of statements.
const (
	OpBegin    Op = "begin"
	OpExec     Op = "exec"
	OpQuery    Op = "query"
	OpCommit   Op = "commit"
	OpRollback Op = "rollback"
)

// Hooks see every statement where it meets the driver. They are called concurrently.
type Hooks struct {
	// Before is called before the statement; an error takes its place and the statement does not run.
	Before func(op Op, query string) error
	// After is called after a statement that succeeded; an error replaces its answer.
	After func(op Op, query string) error
}

func (h Hooks) active() bool { return h.Before != nil || h.After != nil }

func (h Hooks) run(op Op, query string, do func() error) error {
	if h.Before != nil {
		if err := h.Before(op, query); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if h.After != nil {
		return h.After(op, query)
	}
	return nil
}

type hookedConnector struct {
	driver.Connector
	hooks Hooks
}

func (c hookedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &hookedConn{conn: conn.(fullConn), hooks: c.hooks}, nil
}

// fullConn is what the connections of both drivers implement.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type hookedConn struct {
	conn  fullConn
	hooks Hooks
}

var _ fullConn = (*hookedConn)(nil)

func (c *hookedConn) Prepare(query string) (driver.Stmt, error) { return c.conn.Prepare(query) }
func (c *hookedConn) Close() error                              { return c.conn.Close() }
func (c *hookedConn) Ping(ctx context.Context) error            { return c.conn.Ping(ctx) }
func (c *hookedConn) ResetSession(ctx context.Context) error    { return c.conn.ResetSession(ctx) }
func (c *hookedConn) IsValid() bool                             { return c.conn.IsValid() }
func (c *hookedConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *hookedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.conn.PrepareContext(ctx, query)
}

// CheckNamedValue hands the drivers' own conversions through; without it database/sql would use its defaults.
func (c *hookedConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *hookedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	begun := false // a driver may return an error with a nil pointer in tx, which is not nil
	err = c.hooks.run(OpBegin, "BEGIN", func() error {
		tx, err = c.conn.BeginTx(ctx, opts)
		begun = err == nil
		return err
	})
	if err != nil {
		if begun { // only the answer was taken away
			_ = tx.Rollback()
		}
		return nil, err
	}
	return hookedTx{tx: tx, hooks: c.hooks}, nil
}

func (c *hookedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (res driver.Result, err error) {
	err = c.hooks.run(OpExec, query, func() error {
		res, err = c.conn.ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

func (c *hookedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	answered := false
	err = c.hooks.run(OpQuery, query, func() error {
		rows, err = c.conn.QueryContext(ctx, query, args)
		answered = err == nil
		return err
	})
	if err != nil {
		if answered { // only the answer was taken away
			_ = rows.Close()
		}
		return nil, err
	}
	return rows, nil
}

type hookedTx struct {
	tx    driver.Tx
	hooks Hooks
}

func (t hookedTx) Commit() error   { return t.hooks.run(OpCommit, "COMMIT", t.tx.Commit) }
func (t hookedTx) Rollback() error { return t.hooks.run(OpRollback, "ROLLBACK", t.tx.Rollback) }
