package txlog

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

//go:embed migrations
var migrations embed.FS

// Migrations is this package's line of migrations: t_tx_log.
func Migrations() database.Line { return database.Line{Name: "txlog", Files: migrations} }

// The states of a row.
const (
	stateCommitted = "COMMITTED"
	stateVoid      = "VOID"
)

const insert = "INSERT INTO t_tx_log (tx_id, state, delivery, biz_type, biz_no, created_at) VALUES (?, ?, ?, ?, ?, ?)"

func key() database.UniqueKey {
	return database.UniqueKey{Table: "t_tx_log", Name: "PRIMARY", Columns: []string{"tx_id"}}
}

// Record writes the row of a local transaction inside it. bizType and bizNo say for people which fact it was: the
// event's type and subject. Meeting the attempt's tombstone is halfbox.ErrVoided, to be returned by the local
// transaction.
func Record(tx *gorm.DB, at halfbox.Attempt, bizType, bizNo string) error {
	return recorded(tx.Exec(insert, values(at, stateCommitted, bizType, bizNo)...).Error)
}

// RecordSQL is Record for database/sql, see localtx.SQL.
func RecordSQL(ctx context.Context, tx *sql.Tx, at halfbox.Attempt, bizType, bizNo string) error {
	_, err := tx.ExecContext(ctx, insert, values(at, stateCommitted, bizType, bizNo)...)
	return recorded(err)
}

func values(at halfbox.Attempt, state, bizType, bizNo string) []any {
	// Microseconds are what MySQL keeps.
	return []any{at.MsgID, state, string(at.Delivery), bizType, bizNo, time.Now().UTC().Truncate(time.Microsecond)}
}

func recorded(err error) error {
	switch {
	case err == nil:
		return nil
	case key().ViolatedBy(err):
		return fmt.Errorf("%w: %w", halfbox.ErrVoided, err)
	}
	return fmt.Errorf("record transaction: %w", err)
}
