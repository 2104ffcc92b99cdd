// Package outboxtest helps to test code that publishes through package outbox: what was published, what was delivered,
// and a sink whose faults a test scripts.
//
//	db    the *localtx.DB that the Writer has; SQLite in t.TempDir() is enough
//	sink  outboxtest.NewSink("main"), given to a Relay, or to nothing: AssertPublished needs no relay
//
//	outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Data(`{"order_no":"A1"}`))
//	outboxtest.AssertNotPublished(t, db, "order.created", "A2")
//	outboxtest.AwaitDelivered(t, db, "order.created", "A1")
//
// Published means committed: the helpers read outside of any transaction, so what a transaction in progress has written
// is not seen. An assertion that fails ends the test (FailNow), so it belongs into the test's own goroutine.
//
// Times: AwaitDelivered waits at most a minute, by the monotonic clock. The helpers are safe for concurrent use.
package outboxtest
