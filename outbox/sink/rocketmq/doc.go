// Package rocketmq is the outbox's sink for RocketMQ: a plain producer that sends batches.
//
// A batch is one request (code 320) for one topic, and is stored as a whole or not at all. Each message keeps its own
// identity: UNIQ_KEY is the msg_id, KEYS the business number, TAGS the event type. The record's headers become user
// properties.
//
// # Failure handling
//
//	too large or malformed (13), topic does not exist (17), a value that cannot be a property  refused
//	busy (2, 215), not available (14), read-only (16), dial or connection errors               unreachable
//	stored less safely than the broker was told to (flush or slave timeout)                    unreachable
//	no route to the topic: no name server answers, or none knows a broker                      unreachable
//	no route to the topic: a name server knows brokers, but not the topic                      spends a retry
//	no answer in time                                                                          timeout
//	any other answer                                                                           spends a retry
//
// A topic that nobody has created, where brokers do not create topics by themselves, and a name that is none have no
// route: the event dies after its retries, and the others go on. Create topics on every master: a name server forgets
// the topics of a broker that is down for some minutes, and while others are up it cannot be told whether the topic
// ever was.
//
// The client's own retries are off, since a retried send is a second message, and so is its habit to outlive the
// caller's context: a send is given up when its context ends, and what is still under way then is bounded.
//
// The producer's group must hold no transaction producers: the broker would ask this one about their half messages.
package rocketmq
