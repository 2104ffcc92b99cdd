// Package broker is a RocketMQ name server and broker in this process. It
// speaks RocketMQ's remoting protocol over TCP, both roles on one port, so that
// the unmodified github.com/apache/rocketmq-client-go/v2 works against it, and
// it stores what it acknowledges.
//
//	b, err := broker.Open(broker.Config{Dir: "data/broker"})
//	err = b.Start()
//	defer b.Stop(ctx)
//	... producer.WithNameServer(primitive.NamesrvAddr{b.Addr()})
//
// # Guarantees
//
// Acknowledged means durable: a send, a half message, a COMMIT or ROLLBACK, a
// send-back and a new topic are answered after the storage transaction that
// holds them was fsynced. Requests that wait at the same time share one fsync;
// an idle broker adds no wait. Consumer offsets are the exception: they are
// written at most half a second later, and at Stop.
//
// Delivery is at least once. A crash repeats messages whose offset was not
// written yet; a lost answer makes the client send again. Consumers must be
// idempotent.
//
// # A half message
//
//	send (TRAN_MSG) -> stored, not visible -> answered
//	                          |
//	    +---------------------+---------------------+
//	    | COMMIT              | no verdict, UNKNOWN | ROLLBACK
//	    v                     v                     v
//	copied to its topic,   due? count the attempt,  deleted
//	half deleted, in one   re-append under new
//	transaction            offsets, ask one producer (39)
//	                          |                 ^
//	                          | attempts left   | CheckInterval later
//	                          +-----------------+
//	                          | none left
//	                          v
//	                       TRANS_CHECK_MAX_TIME_TOPIC, never checked again; a verdict that
//	                       comes after all is carried out, as in RocketMQ: a late COMMIT delivers
//
// The first check is due TransactionTimeout, or the message's own
// CHECK_IMMUNITY_TIME_IN_SECONDS, after its born timestamp, which is the
// producer's clock (the store time when that is earlier). The others follow
// every CheckInterval. An attempt counts also when no producer of the group is
// connected. TRANSACTION_CHECK_TIMES in the message is its number.
//
// # Failures
//
// A write error fails the requests concerned with code 1 (SYSTEM_ERROR), is
// logged, and the broker goes on. A frame or body that cannot be decoded closes
// its connection with one log line. A panic in a handler is answered with code
// 1 and logged. A client that does not read is disconnected after 10 s or 64
// MiB. After a kill the storage opens as of the last fsync.
//
// A client that waits for a pull when the process is killed notices after its
// own 30 s. Stop answers waiting pulls with code 14, which makes clients connect
// anew within 3 s.
//
// # Units and clocks
//
// Timestamps on the wire and in storage are Unix milliseconds. The broker's
// clock is Hooks.Now. Sizes are bytes.
//
// # Differences from Apache's broker
//
// Stricter with halves: a verdict ends a half once, also one that was given up.
// RocketMQ (5.4 and before) keeps no verdict memory and accepts COMMIT twice and
// COMMIT after ROLLBACK, and delivers each time; here the half is gone and the
// second verdict is answered with code 1. A verdict that names
// offsets from before a check ends the half; in RocketMQ the re-appended copy is
// checked on and delivers again. Hooks.KeepHalf brings the real behaviour back.
// Scans inside a message's immunity time do not count as attempts. A half is
// never delayed: DELAY and TIMER_* are dropped from it, where RocketMQ loses its
// topic. An open half is never deleted by age.
//
// The half topic and the delay schedule cannot be pulled. Topics are created by
// a route query already, not only by the first send; retry and dead letter
// topics have a route at once. A client is live as long as its connection is.
// CONSUMER_LIST (38) of a connection that is not in the group is answered after
// 5 s. There is no replication, ACL, TLS, SQL92 filter, broadcast state, message
// trace or binary header. A request code that is not supported is answered with
// code 3.
//
// The storage is one bbolt file. Retention deletes by age; the file does not
// shrink, its free pages are used again.
package broker
