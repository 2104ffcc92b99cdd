package outbox

import (
	"errors"

	"github.com/go-sql-driver/mysql"
)

// errDeadlock is the error by which MySQL says that it rolled the transaction back.
func errDeadlock() error {
	return &mysql.MySQLError{Number: 1213, Message: "Deadlock found when trying to get lock; try restarting transaction"}
}

// errLockWait is the error by which MySQL says that a lock did not become free in time.
func errLockWait() error {
	return &mysql.MySQLError{Number: 1205, Message: "Lock wait timeout exceeded; try restarting transaction"}
}

var errInjected = errors.New("injected: connection reset by peer")
