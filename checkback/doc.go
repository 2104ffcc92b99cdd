// Package checkback answers the broker's question "did this transaction commit?" from the database alone, so that
// any instance can answer for any other, also after every process was restarted.
//
// # Decision
//
// In this order; a Resolver finds, the Checker decides:
//
//	a tombstone (VOID) with this msg_id                     ROLLBACK
//	the transaction's own row with this msg_id              COMMIT
//	the same business fact under another msg_id             ROLLBACK  another attempt won
//	neither, and the half message is younger than Grace     UNKNOWN   the local transaction may still be open
//	neither, older                                          insert the tombstone:
//	    inserted                                            ROLLBACK  a late local transaction now fails on the key
//	    the key is taken                                    look again
//	    lock wait (the local transaction is still open)     UNKNOWN
//	any database error, the deadline, a panic               UNKNOWN
//
// "No row" alone never means ROLLBACK: the local transaction may be about to commit. The tombstone makes it certain,
// because it takes the unique key that the local transaction needs.
//
// # Failure handling
//
// An error is never an answer: the Checker says UNKNOWN, and the broker asks again. Its decision does not depend on
// clocks: Grace only spares young transactions from being voided, and an age that is wrong because two machines'
// clocks differ can void an attempt (which is then made again) but can never split the outcome.
//
// # Pool
//
// A Resolver reads and writes in autocommit on a pool of its own, at READ COMMITTED, with a lock wait of one second,
// on the primary: checks are answered one at a time and must not queue behind the service's transactions.
//
// Checker is safe for concurrent use.
package checkback
