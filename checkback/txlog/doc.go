// Package txlog is the record of local transactions that leave no row of their own, such as a conditional UPDATE: the
// table t_tx_log, in the database of those transactions.
//
//	local transaction    Record(tx, at, type, no)   a COMMITTED row under the attempt's msg_id
//	check-back           Resolver                   asks by msg_id alone, and writes VOID rows (tombstones)
//	retention            Purger                     deletes what no broker can ask about any more
//
// # Guarantee
//
// The row and the transaction commit together, so the row's state is the answer:
//
//	COMMITTED   COMMIT
//	VOID        ROLLBACK
//	no row      UNKNOWN while the half message is young, then the tombstone, see package checkback
//
// tx_id is the primary key. A local transaction that is later than its tombstone meets it there: Record answers
// halfbox.ErrVoided, and the publisher makes one new attempt. Another attempt of the same business fact is not
// looked for: whether a second one may commit is for the transaction's own condition to decide.
//
// Record under every delivery, also those that ask nothing: then the table says how each transaction was delivered.
//
// # Retention
//
// A row may be deleted when the broker no longer keeps the half message it belongs to; a COMMITTED row deleted before
// that would be answered with a tombstone, which loses the message. Purger keeps rows for a week unless told
// otherwise; RocketMQ keeps messages for 72 h, but longer what is in a file that it has not filled yet, and it may be away
// meanwhile. So Resolver makes no tombstone for a half message older than MinRetention that has no row
// (checkback.ErrUndecidable): it ends in t_dead_letter, where a person decides. Rows are found by the primary key, which begins with the time (UUIDv7),
// and their age is judged by created_at against the database's clock.
//
// created_at is the application's UTC clock. Everything here is safe for concurrent use.
package txlog
