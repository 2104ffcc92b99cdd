// Package txmsg delivers events by RocketMQ transactional messages: a half message is stored at the broker, the
// local transaction runs, and the half is committed or rolled back. When that last word is lost, the broker asks,
// and a Checker answers from the database.
//
// # Guarantee
//
// PublishInTx keeps the contract of package halfbox. The outcome is read from the attempt's own state, never from
// the client's error: the client returns nil for a half that was not stored safely and an error for one that was.
//
// # An attempt
//
//	                 stored in time                    committed    --> COMMIT    nil
//	waiting ----------------------------> local ---->  rolled back  --> ROLLBACK  ErrRolledBack
//	   |                                               COMMIT lost  --> UNKNOWN   ErrUnknown
//	   | refused, deadline, caller gone
//	   v
//	abandoned    (an acknowledgement that comes later answers ROLLBACK and runs nothing)
//
// The state changes by compare-and-swap: exactly one of local and abandoned is ever reached. The caller has its
// answer when the local transaction has ended; END_TRANSACTION is sent in the background, because RocketMQ never
// acknowledges it and the client may block on it for seconds. If it is lost, the broker's check repairs it.
//
// # Failure handling
//
//	half refused, or no broker    the attempt is abandoned: Fallback if there is one, else ErrUnavailable
//	half unclear (deadline)       the same; if it was stored after all, its check finds no row and rolls it back
//	local transaction fails       ErrRolledBack with the cause, ROLLBACK is sent
//	local transaction voided      one new attempt (a check-back was faster than the local transaction)
//	COMMIT's answer lost          ErrUnknown; the broker is told UNKNOWN and asks
//	process dies anywhere         the broker asks the next process of the group
//
// # Rules for the producer group
//
// A group belongs to exactly one database and holds transaction producers only: the broker asks any member, and a
// plain producer in it would swallow the check. The broker knows a producer only after its first heartbeat; Ready
// tells when that has happened.
//
// A Producer is safe for concurrent use.
package txmsg
