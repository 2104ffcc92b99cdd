package database

import (
	"context"
	"database/sql"
	"errors"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
)

// SQLLocal makes a local transaction's function of one that wants database/sql: it gets the very transaction that
// InTx has begun, and a context that ends at the deadline of the local transaction and belongs in every statement.
//
// fn must not commit or roll back. It has the means, so InTx says halfbox.ErrUnknown when it did.
func SQLLocal(fn func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error) func(tx *gorm.DB, at halfbox.Attempt) error {
	return func(tx *gorm.DB, at halfbox.Attempt) error {
		local, ok := tx.Statement.ConnPool.(*localTx)
		if !ok {
			return errors.New("not a local transaction of InTx")
		}
		ctx := tx.Statement.Context
		// With ctx in its statements, fn needs no help to end; and a transaction that is over is fn's doing for certain.
		if !local.unfollow() && !local.raw {
			return context.Cause(ctx)
		}
		local.raw = true
		return fn(ctx, local.Tx, at)
	}
}
