// Package points is the consumer of the reference service: an order earns amount_cents/100 points, once,
// and its cancellation takes them back, once.
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
//	rejected       the account is frozen: a zero EARN was booked, there is no retry; a REVERSE is booked all the same
//	reversed       what the order's EARN gave was taken back, zero if it was rejected
//	reversed first the order has no EARN yet: a zero placeholder (msg_id "void:" + order_no) was booked with the REVERSE
//	earn voided    an EARN that came after its REVERSE met that placeholder, and changes nothing whatever it says
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
