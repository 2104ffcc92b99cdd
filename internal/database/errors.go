package database

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// MySQL's error numbers that mean something to us.
const (
	myDuplicateEntry     = 1062
	myNoTable            = 1146
	myNoKey              = 1176
	myDiskFull           = 1021
	myTooManyConnections = 1040
	myShutdown           = 1053
	myTableFull          = 1114
	myLockWaitTimeout    = 1205
	myDeadlock           = 1213
	myOptionPrevents     = 1290 // --read-only, --super-read-only
	myReadOnlyTx         = 1792
	myReadOnlyMode       = 1836
	myHookRefusedCommit  = 3100 // a replication hook before commit
	myRollbackInCommit   = 3101 // a plugin, for example group replication, chose another transaction
)

// UniqueKey names a unique key the way both dialects report it: MySQL by its name, SQLite by its columns.
type UniqueKey struct {
	Table   string
	Name    string // "PRIMARY" for the primary key
	Columns []string
}

// ViolatedBy reports whether err is a duplicate entry for exactly this key.
func (k UniqueKey) ViolatedBy(err error) bool {
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number == myDuplicateEntry &&
			(strings.HasSuffix(my.Message, "for key '"+k.Table+"."+k.Name+"'") || strings.HasSuffix(my.Message, "for key '"+k.Name+"'"))
	}
	if code, lite := sqliteCode(err); code == sqlite3.SQLITE_CONSTRAINT_UNIQUE || code == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY {
		columns := make([]string, len(k.Columns))
		for i, c := range k.Columns {
			columns[i] = k.Table + "." + c
		}
		return strings.Contains(lite.Error(), fmt.Sprintf("UNIQUE constraint failed: %s (", strings.Join(columns, ", ")))
	}
	return false
}

// IsDuplicate reports whether err is a duplicate entry for any unique key.
func IsDuplicate(err error) bool {
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number == myDuplicateEntry
	}
	code, _ := sqliteCode(err)
	return code == sqlite3.SQLITE_CONSTRAINT_UNIQUE || code == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

func isNoTable(err error) bool {
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number == myNoTable
	}
	_, lite := sqliteCode(err)
	return lite != nil && strings.Contains(lite.Error(), "no such table")
}

// IsLockConflict reports whether err says that another transaction was in the way: a deadlock, a lock wait that
// ran out, or a busy SQLite file. The whole transaction may be repeated.
func IsLockConflict(err error) bool {
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number == myDeadlock || my.Number == myLockWaitTimeout
	}
	code, _ := sqliteCode(err)
	return code&0xff == sqlite3.SQLITE_BUSY || code&0xff == sqlite3.SQLITE_LOCKED
}

// IsTransient reports whether err is of the kind that goes away when the engine is well again: another transaction in
// the way, a full disk, a server that is down, busy or read-only.
func IsTransient(err error) bool {
	if IsLockConflict(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) {
		return true
	}
	var wire net.Error
	if errors.As(err, &wire) {
		return true
	}
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		switch my.Number {
		case myDiskFull, myTooManyConnections, myShutdown, myTableFull, myOptionPrevents, myReadOnlyTx, myReadOnlyMode:
			return true
		}
		return false
	}
	code, _ := sqliteCode(err)
	switch code & 0xff {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN:
		return true
	}
	return false
}

// commitRefused reports whether an error of COMMIT proves that nothing was committed. Everything else leaves the
// outcome open: the answer was lost on the wire, or the server itself does not say.
func commitRefused(err error) bool {
	if errors.Is(err, driver.ErrBadConn) {
		// The driver promises that nothing was sent when it returns ErrBadConn; database/sql relies on it too.
		return true
	}
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		// Only what is known to undo the transaction: servers and proxies also answer errors after a commit.
		switch my.Number {
		case myLockWaitTimeout, myDeadlock, myOptionPrevents, myReadOnlyTx, myReadOnlyMode, myHookRefusedCommit, myRollbackInCommit:
			return true
		}
		return false
	}
	code, lite := sqliteCode(err)
	if lite == nil || errors.Is(err, sql.ErrTxDone) {
		return false
	}
	switch code & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_READONLY:
		return true
	}
	return false
}

func sqliteCode(err error) (int, *sqlite.Error) {
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		return lite.Code(), lite
	}
	return 0, nil
}

// IsNoIndex reports whether err says that a statement names an index that is not there.
func IsNoIndex(err error) bool {
	var my *mysql.MySQLError
	if errors.As(err, &my) {
		return my.Number == myNoKey
	}
	_, lite := sqliteCode(err)
	return lite != nil && strings.Contains(lite.Error(), "no such index")
}
