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
//	an id or an age about which nothing can be known        UNKNOWN   see ErrUndecidable
//	the database did not answer a moment ago                UNKNOWN   at once, see Pinger
//
// "No row" alone never means ROLLBACK: the local transaction may be about to commit. The tombstone makes it certain,
// because it takes the unique key that the local transaction needs.
//
// # Resolvers
//
// A Resolver belongs to event types: Config.Resolvers, Checker.Register. A type without one is answered UNKNOWN and
// counted, never guessed. Local transactions that leave no row of their own are recorded in t_tx_log, and answered by
// the resolver of package checkback/txlog; there the third line of the table does not apply.
//
// # Failure handling
//
// An error is never an answer: the Checker says UNKNOWN, and the broker asks again. After an error the Checker finds out
// whether the database answers at all. If it does, the trouble was this half message's own and the next one is decided;
// if not, check-backs are answered UNKNOWN at once, and the database is asked again every second. A Resolver that does not
// return is left behind, four at most. Its decision does not depend on
// clocks: Grace only spares young transactions from being voided, and an age that is wrong because two machines'
// clocks differ can void an attempt (which is then made again) but can never split the outcome.
//
// # Pool
//
// A Resolver reads and writes in autocommit on a pool of its own, at READ COMMITTED, with a lock wait of one second,
// on the primary: checks are answered one at a time and must not queue behind the service's transactions.
//
// # Rescue
//
// A broker gives a half message up after transactionCheckMax checks, or when it gets too old, and moves it to
// TRANS_CHECK_MAX_TIME_TOPIC; nobody is asked about it again. A Rescuer reads that topic by pull, from a position of its own in
// t_progress, and decides the half messages of one producer group by the table above without a grace:
//
//	COMMIT      the event is recorded for the outbox under the half message's own msg_id; a record that is there
//	            already counts as done
//	ROLLBACK    nothing: the tombstone is there, or another attempt has won
//	UNKNOWN     the position stays, the later half messages wait, the next look asks again
//
// A half message that can never be decided or published goes to t_dead_letter, is counted and logged as an error, and
// holds nothing up: one of a type without a Resolver, whose body is not an event, whose id is no attempt's, whose row may
// have been purged (ErrUndecidable), whose fact is recorded under another id (ErrUnrecordable), and a stored record that
// cannot be read, whoever sent it. The record, or the dead letter, and the position are one transaction, so a crash
// leaves both or none. One Rescuer works at a time, under a lease by the database's clock; the position advances only
// for its owner and from the value it knows, so one that was frozen past its lease changes nothing.
//
// A broker that deleted half messages before they were looked at, or lost its storage, is reported, and reading goes
// on with what is there. Stop ends the work after the statement that runs.
//
// Checker and Rescuer are safe for concurrent use.
package checkback
