package database

import (
	"context"
	"database/sql"
	"strings"
)

// After a deadlock MySQL has rolled the transaction back, and each statement that followed in it would be a transaction
// of its own. So the first lock conflict is the last that the database hears of a localTx, whatever fn makes of it.

// ExecContext runs a statement, unless it would end the transaction.
func (t *localTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if endsTransaction(query) {
		return nil, t.Commit()
	}
	if err := t.lost(); err != nil {
		return nil, err
	}
	res, err := t.Tx.ExecContext(ctx, query, args...)
	return res, t.note(err)
}

// QueryContext runs a query.
func (t *localTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := t.lost(); err != nil {
		return nil, err
	}
	rows, err := t.Tx.QueryContext(ctx, query, args...)
	return rows, t.note(err)
}

// QueryRowContext runs a query for one row.
func (t *localTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if t.lost() != nil {
		ended, cancel := context.WithCancel(ctx) // nothing but the database makes a Row
		cancel()
		return t.Tx.QueryRowContext(ended, query, args...)
	}
	row := t.Tx.QueryRowContext(ctx, query, args...)
	_ = t.note(row.Err()) // Scan returns it
	return row
}

// endsTransaction tells the statements after which a COMMIT of ours would have another transaction to commit, or none.
func endsTransaction(query string) bool {
	const longest = len("ROLLBACK")
	word, rest, _ := strings.Cut(strings.TrimLeft(query, " \t\r\n;"), " ")
	if word = strings.TrimRight(word, " \t\r\n;"); len(word) > longest {
		return false
	}
	switch strings.ToUpper(word) {
	case "COMMIT", "BEGIN", "START":
		return true
	case "ROLLBACK":
		return !strings.Contains(" "+strings.ToUpper(rest), " TO ") // a savepoint
	}
	return false
}

// lost is the first lock conflict.
func (t *localTx) lost() error {
	if err := t.conflict.Load(); err != nil {
		return *err
	}
	return nil
}

// note remembers the first lock conflict.
func (t *localTx) note(err error) error {
	if IsLockConflict(err) {
		t.conflict.CompareAndSwap(nil, &err)
	}
	return err
}
