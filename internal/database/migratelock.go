package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// mysqlMigrationLock is a named lock of the session that migrates. The server gives it up when that session ends, so
// a process that dies leaves none behind.
type mysqlMigrationLock struct{}

// migrationLockName is cut to MySQL's limit of 64 characters for names of locks, which belong to the whole server.
const migrationLockName = "SUBSTRING(CONCAT('halfbox_migrate_', DATABASE()), 1, 64)"

// migrationLockWait is how long one process waits for another's migrations, in seconds.
const migrationLockWait = 300

// SessionLock takes the lock.
func (mysqlMigrationLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	// A migration may keep quiet or work for longer than a session of the service may.
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = 28800"); err != nil {
		return fmt.Errorf("migration lock: %w", err)
	}
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK("+migrationLockName+", ?)", migrationLockWait).Scan(&got); err != nil {
		return fmt.Errorf("migration lock: %w", err)
	}
	if got.Int64 != 1 {
		return errors.New("migration lock: another process has been migrating for 5 minutes")
	}
	return nil
}

// SessionUnlock gives the lock back.
func (mysqlMigrationLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	var released sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT RELEASE_LOCK("+migrationLockName+")").Scan(&released); err != nil {
		return fmt.Errorf("migration lock: %w", err)
	}
	return nil
}
