// Package compare puts the delivery strategies side by side: the same orders through each of them, on the same engines,
// interleaved round by round, and through naive, the habit of sending after the commit, as the control that shows what
// loss looks like. The databases judge what came of it, not the strategies: lost, duplicate and wrong are read from
// t_order and from the ledger.
//
//	cfg.Engines --> Site (schemas, topic, groups, proxies, the service as a child process), one for each strategy
//	rounds:  A B C, B C A, C A B, ...     closed or open loop, latency from the intended start
//	faults:  A, B and C at the same time  the same fault at the same moment, open loop
//	judge:   t_order x t_points_record    lost, wrong; the consumer's own record: duplicates delivered
//	Report:  table, report.json (raw samples), report.html (one file, works offline), report.md
//
// A strategy joins by one line in Strategies. A winner is named only where the rounds show one, see Decide.
//
// Times of day are of this machine's clock; the broker's clock is used for the time at which it stored a message.
package compare
