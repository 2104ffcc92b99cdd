// Package points is the consumer of the reference service: an order earns amount_cents/100 points, once.
//
// # Guarantee
//
// A message may arrive any number of times and in any order; its effect happens exactly once. The effect and the
// proof that it happened are one transaction:
//
//	message --> [ account locked | t_points_record inserted | balance moved ] --> COMMIT --> acknowledge
//	                               uk_msg_id, uk_order_type
//
// The acknowledgement comes after COMMIT, so a crash in between redelivers the message, and the unique keys make
// the second run a no-op: uk_msg_id stops the same message, uk_order_type the same order under another message.
//
// # Outcome of a message
//
//	credited       the points were booked
//	rejected       the account is frozen: a zero record was booked, there is no retry
//	duplicate      the same facts were booked before; acknowledged, counted by the key that noticed
//	conflict       the same message or order was booked with other facts: dead letter and alarm, never dropped
//	dead letter    a body, type or schema that can never be handled
//	error          the database is in the way; not acknowledged, to be tried again
//
// # Failure handling
//
// Handle returns an error only for faults that pass (a database that is down, a lock). The caller waits and calls
// again; nothing is lost, and the message's retry budget at the broker need not be spent.
//
// created_at is the application's clock in UTC. All types are safe for concurrent use.
package points
