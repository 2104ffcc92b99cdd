// Package order is the domain of the reference service: orders, their states, and the three verbs Create,
// Cancel and Get. It knows neither HTTP nor RocketMQ nor how events are delivered; it declares the one-method
// Publisher it needs and leaves the choice to the wiring.
//
// # States
//
//	           +--> CANCELLED
//	CREATED ---+
//	VOID            a tombstone: not an order, only the mark that one attempt will never commit
//
// A VOID row takes the attempt's msg_id and nothing else (its order_no is "~" + msg_id), so that another attempt of
// the same order stays possible. No query of the domain shows it.
//
// # Guarantee
//
// Create answers with the order exactly when its row is committed, and then its order.created event is delivered at
// least once. The same Idempotency-Key of the same user gives the same order, also after a lost answer, a crash, or
// two requests at once: the unique key uk_idempotency decides, not a lookup.
//
// Cancel is idempotent by nature: its UPDATE is conditional on the state and the version that were read, so of any
// number of cancels exactly one commits, with one order.cancelled event under version + 1. An order that is cancelled
// leaves points_state as it is: that follows the points. The transaction leaves no row of its own, so it is recorded
// in t_tx_log, see package checkback/txlog, which needs its table in the order database.
//
// # Failure handling
//
//	halfbox.ErrRolledBack  nothing was written; safe to repeat
//	*UnknownError          COMMIT's answer was lost; ask again by Idempotency-Key or order number, or cancel again
//
// Times are the application's clock in UTC, microseconds. All types are safe for concurrent use.
package order
