// Package outbox is the transactional outbox: a Writer puts an event record into t_event_record inside the caller's
// local transaction, and a Relay sends the records to their sinks under leases.
//
// # Guarantee
//
// A record is delivered at least once iff the transaction that wrote it committed. While the lease of a claim holds,
// no other relay sends its records. The order of delivery is not promised, unless the sink is ordered.
//
// # Order per key
//
// To a sink in RelayConfig.Ordered the first occurrences of the events of one partition key arrive in the order of their
// aggregate_version, with any number of relays, whatever fails or dies; a frozen sender may repeat old ones. Only the
// lowest unsent version of a key is claimed. A dead letter holds its key (HeadOfLineBlock) or is set aside
// (HeadOfLinePark); the promise excludes what was set aside, and what was sent again after SUCCESS by a repair. It rests
// on the writer: the version is raised under the lock of the aggregate's row, in the transaction that writes the event.
//
// # States
//
//	  +---------------- retry, put-off, release, reclaim ----------------+
//	  v                                                                  |
//	WAIT --claim--> SENDING --mark--> SUCCESS                            |
//	                   |  |                                              |
//	                   |  +----------------------------------------------+
//	  ^                +--fail, bury--> FAIL (dead letter)
//	  +------------------redrive---------+
//
// Every transition is one conditional UPDATE on the old status and, out of SENDING, on the claim_owner; the affected
// rows are checked. claim_owner is new for every claim, so that whatever a frozen process or a delayed packet still
// writes finds no row. A write-back that finds fewer rows than it should is counted in
// halfbox_outbox_lease_misses_total; nothing is overwritten. No transaction is open while a sink is called.
//
//	claim    WAIT and due           -> SENDING   two ways, see ClaimMode; losing a row to another relay is normal
//	mark     confirmed by the sink  -> SUCCESS
//	retry    failed, spends a retry -> WAIT      due after retry_count^2 x 5 s, ±20 %, capped
//	put-off  sink unreachable       -> WAIT      spends nothing, keeps its place
//	release  not handed to the sink -> WAIT      the tail of a batch, or at Stop
//	reclaim  lease_until has passed -> WAIT      reclaim_count + 1
//	fail     refused, or the fourth failure        -> FAIL
//	bury     lease ran out the fifth time          -> FAIL
//	redrive  FAIL, by an operator, audited         -> WAIT      as if it had never been sent
//	purge    SUCCESS, past the retention; FAIL only by an operator, audited -> gone
//
// # Clocks
//
// next_retry_time, claimed_at and lease_until are written and compared by the database's clock alone. How long a
// lease may be relied on is judged locally, on the careful side: from before the statement that wrote it, less a
// margin, by the monotonic and the wall clock both. created_at, sent_at and first_error_at are the application's
// UTC time.
//
// # Failure handling
//
//	refused       split into single sends; a single one that is refused is a dead letter at once
//	unreachable   put off; the breaker opens, nothing is claimed for the sink until a probe gets through; then the
//	              backlog is drained at a limited rate, and what is written meanwhile passes it
//	timeout       split into single sends; a single one counts as unreachable unless another event succeeded at
//	              about the same time. Where nothing else can tell, because no other event is due or too many
//	              different ones have timed out, the sink is probed: if it answers, the event spends a retry
//	other error   split into single sends; a single one that fails spends a retry
//
// The send of a batch decides nothing about its events when it fails: only sends of single events spend retries.
// An event that has spent one is sent on its own from then on and spoils no batch. An event whose timeout was taken for
// the sink's is sent on its own too, one in turn with every batch of others, and a half-open breaker probes with others
// first. A relay knows this only of the last 200 such events that it has sent itself, and until it stops.
//
// A relay that dies leaves its records SENDING; any relay reclaims them when their lease is over. A record reclaimed
// twice is claimed alone, since it may be what its relays die of; its fifth reclaim makes it a dead letter.
//
// A write-back that meets a database error is repeated for up to the length of a lease, and then left to the lease. A
// claim whose outcome is unknown is given back before the next one. The loops survive every error.
//
// # Size and backlog
//
// The relay works only when every statement of its loops has its index (CheckIndexes); their cost does not depend on
// the number of records that are done. These are deleted after RelayConfig.Retention. A Backlog tells the process that
// writes how long records have been due, and lets its Writer refuse (ErrBacklog) when that is too long.
//
// # Use
//
// A Writer takes the caller's transaction as *gorm.DB (WriteTx) or *sql.Tx (WriteSQLTx), or begins its own
// (PublishInTx). Package localtx makes the database handle, package outboxtest helps to test.
//
// Stop lets sends in progress finish and be marked and releases the rest. When its context ends first, sends are cut
// off and their records wait for the end of their lease.
package outbox
