package database_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

func keys() map[string]database.UniqueKey {
	key := func(name string, columns ...string) database.UniqueKey {
		return database.UniqueKey{Table: "t_order", Name: name, Columns: columns}
	}
	return map[string]database.UniqueKey{
		"PRIMARY":        key("PRIMARY", "id"),
		"uk_order_no":    key("uk_order_no", "order_no"),
		"uk_msg_id":      key("uk_msg_id", "msg_id"),
		"uk_idempotency": key("uk_idempotency", "user_id", "idempotency_key"),
	}
}

// requireOnly asserts that err violates the named key and no other; no name means none.
func requireOnly(t testing.TB, err error, name string) {
	t.Helper()
	require.Error(t, err)
	for n, key := range keys() {
		require.Equal(t, n == name, key.ViolatedBy(fmt.Errorf("insert order: %w", err)), "%s violated by %v", n, err)
	}
	require.Equal(t, name != "", database.IsDuplicate(err), "%v", err)
}

const ordersDDL = `CREATE TABLE t_order (id INTEGER PRIMARY KEY, order_no VARCHAR(64) NOT NULL, msg_id VARCHAR(64) NOT NULL,
	user_id INTEGER NOT NULL, idempotency_key VARCHAR(64) NULL)`

func uniqueKeysOf(t *testing.T, db *database.DB) {
	mustExec(t, db, ordersDDL)
	mustExec(t, db, "CREATE UNIQUE INDEX uk_order_no ON t_order (order_no)")
	mustExec(t, db, "CREATE UNIQUE INDEX uk_msg_id ON t_order (msg_id)")
	mustExec(t, db, "CREATE UNIQUE INDEX uk_idempotency ON t_order (user_id, idempotency_key)")
	row := func(id int, orderNo, msgID string, userID int, key any) error {
		return db.Write.Exec("INSERT INTO t_order VALUES (?, ?, ?, ?, ?)", id, orderNo, msgID, userID, key).Error
	}
	const trap = "UNIQUE constraint failed: t_order.order_no (2067) for key 't_order.uk_order_no'"
	require.NoError(t, row(1, "A", trap[:60], 7, "k"))
	requireOnly(t, row(1, "B", "m2", 8, nil), "PRIMARY")
	requireOnly(t, row(2, "A", "m2", 8, nil), "uk_order_no")
	requireOnly(t, row(2, "B", trap[:60], 8, nil), "uk_msg_id")
	requireOnly(t, row(2, "B", "m2", 7, "k"), "uk_idempotency")
	require.NoError(t, row(2, "B", "m2", 7, nil), "no key is no duplicate")
	require.NoError(t, row(3, "C", "m3", 7, nil))
	requireOnly(t, db.Write.Exec("INSERT INTO t_order VALUES (9, NULL, 'm9', 1, NULL)").Error, "")
}

func TestUniqueKeysOfSQLite(t *testing.T) {
	t.Parallel()
	uniqueKeysOf(t, newDB(t, database.Options{}))
}

func TestUniqueKeysOfMySQL(t *testing.T) {
	t.Parallel()
	uniqueKeysOf(t, newMySQL(t, database.Options{}))
}

// Another table's key of the same name or columns is another key.
func TestUniqueKeyOfAnotherTable(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	mustExec(t, db, "CREATE TABLE t_order_old (msg_id TEXT NOT NULL UNIQUE, kind TEXT)")
	mustExec(t, db, "INSERT INTO t_order_old VALUES ('m', 'x')")
	err := db.Write.Exec("INSERT INTO t_order_old VALUES ('m', 'x')").Error
	require.True(t, database.IsDuplicate(err))
	for name, key := range keys() {
		require.False(t, key.ViolatedBy(err), name)
	}
}

// A key over several columns is not the key over its last one.
func TestUniqueKeyThatEndsLikeAnother(t *testing.T) {
	t.Parallel()
	db := newDB(t, database.Options{})
	mustExec(t, db, "CREATE TABLE t_order (user_id INTEGER, msg_id TEXT, UNIQUE (user_id, msg_id))")
	mustExec(t, db, "INSERT INTO t_order VALUES (1, 'm')")
	err := db.Write.Exec("INSERT INTO t_order VALUES (1, 'm')").Error
	require.True(t, database.IsDuplicate(err))
	for name, key := range keys() {
		require.False(t, key.ViolatedBy(err), name)
	}
}

func TestUniqueKeyInMySQLErrorText(t *testing.T) {
	t.Parallel()
	tests := []struct{ message, key string }{
		{"Duplicate entry 'x' for key 't_order.uk_msg_id'", "uk_msg_id"}, // MySQL 8.0.19 and newer
		{"Duplicate entry 'x' for key 'uk_msg_id'", "uk_msg_id"},         // older, and MariaDB
		{"Duplicate entry '7-k' for key 't_order.uk_idempotency'", "uk_idempotency"},
		{"Duplicate entry '7-k' for key 'uk_idempotency'", "uk_idempotency"},
		{"Duplicate entry 'x' for key 't_order.uk_order_no'", "uk_order_no"},
		{"Duplicate entry '1' for key 't_order.PRIMARY'", "PRIMARY"},
		{"Duplicate entry '1' for key 'PRIMARY'", "PRIMARY"},
		{"Duplicate entry 'a' for key 't_order.uk_msg_id' for key 't_order.uk_order_no'", "uk_order_no"},
		{"Duplicate entry 'for key 't_order.uk_msg_id'' for key 'uk_idempotency'", "uk_idempotency"},
		{"Duplicate entry ' for key 'uk_msg_id'' for key 't_order.PRIMARY'", "PRIMARY"},
	}
	for _, tt := range tests {
		requireOnly(t, &mysql.MySQLError{Number: 1062, Message: tt.message}, tt.key)
	}
	for _, message := range []string{
		"Duplicate entry 'x' for key 't_other.uk_msg_id'",
		"Duplicate entry 'x' for key 'another_uk_msg_id'",
		"Duplicate entry 'for key 't_order.uk_msg_id'' for key 'uk_else'",
	} {
		err := &mysql.MySQLError{Number: 1062, Message: message}
		require.True(t, database.IsDuplicate(err))
		for name, key := range keys() {
			require.False(t, key.ViolatedBy(err), "%s: %s", name, message)
		}
	}
	requireOnly(t, &mysql.MySQLError{Number: 1452, Message: "Duplicate entry 'x' for key 't_order.uk_msg_id'"}, "")
	requireOnly(t, errors.New("Duplicate entry 'x' for key 't_order.uk_msg_id'"), "")
}
