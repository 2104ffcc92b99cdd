// Package halfbox holds the words that both delivery strategies share: the Event, the Attempt that carries it,
// the Delivery (strategy), and the three outcomes of a publish.
//
// halfbox delivers the events of a local database transaction at least once if and only if that transaction
// commits, and makes the consumer's effect happen exactly once. Two strategies stand behind one call,
//
//	PublishInTx(ctx, ev, local func(tx *gorm.DB, at Attempt) error) (Receipt, error)
//
// package txmsg (RocketMQ transactional messages) and package outbox (the t_event_record table).
//
// # Guarantee
//
//	                 nil            committed; the event is delivered at least once
//	PublishInTx -->  ErrRolledBack  nothing happened; nothing is delivered
//	                 ErrUnknown     COMMIT's answer was lost; if it committed, the event is delivered
//
// local may run more than once (a deadlock repeats it under the same Attempt, a voided attempt or a fallback
// under a new one), so it has no side effects outside tx. It writes at.MsgID and at.Delivery into its row.
//
// # Envelope
//
// The body of a message is a CloudEvents 1.0 event in the JSON format, see Encode. Two messages state the same
// fact when their facts are equal; their bytes may differ.
//
// Everything in this package is safe for concurrent use.
package halfbox
