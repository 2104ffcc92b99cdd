// Package database opens the two kinds of database halfbox runs on, MySQL and SQLite, with the settings its
// guarantees need, and runs local transactions in them.
//
// # Clocks
//
// Facts (created_at, the time of an event) carry the application's UTC time. Due times and leases are written
// and compared by the database's clock alone: Dialect.Now and Dialect.NowPlus are the only way to say "now" in
// such a statement. Microseconds on MySQL, milliseconds on SQLite, UTC on both.
//
// # Pools
//
// On SQLite a process has one writer connection (transactions begin IMMEDIATE, so that a writer never fails half
// way on a stale snapshot) and a few read-only ones; WAL lets them read while it writes, and several processes of
// one machine may share the files. Commits use synchronous=FULL: what was acknowledged survives a power cut.
// On MySQL one pool serves both.
//
// # Outcome of a transaction
//
// InTx never guesses: it returns nil when COMMIT was confirmed, halfbox.ErrUnknown when its answer was lost, and
// halfbox.ErrRolledBack in every other case.
package database
