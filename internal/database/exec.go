package database

import (
	"time"

	"gorm.io/gorm"
)

// Exec runs one statement in tx as it is written, and returns the rows that it affected. It is for statements that run
// so often that gorm's work on them counts: gorm's callbacks, and plugins that live in them, do not see it. Its logger
// does.
func Exec(tx *gorm.DB, query string, args ...any) (rows int64, err error) {
	began := time.Now()
	ctx := tx.Statement.Context
	defer func() { tx.Logger.Trace(ctx, began, func() (string, int64) { return query, rows }, err) }()
	res, err := tx.Statement.ConnPool.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
