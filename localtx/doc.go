// Package localtx is the database of the local transactions: the handle that txmsg.Config, outbox.WriterConfig and
// outbox.RelayConfig ask for. Make one
//
//	from a DSN or a file   OpenMySQL, OpenSQLite   with every setting that the guarantees need
//	from a *sql.DB         FromSQL                 which must have been opened with them (CompleteDSN)
//	from a *gorm.DB        FromGorm                the same
//
// Its local transactions are handed out as *gorm.DB; SQL turns them into *sql.Tx:
//
//	producer.PublishInTx(ctx, ev, func(tx *gorm.DB, at halfbox.Attempt) error { ... })
//	producer.PublishInTx(ctx, ev, localtx.SQL(func(ctx context.Context, tx *sql.Tx, at halfbox.Attempt) error { ... }))
//
// # What a pool must have
//
//	MySQL   parseTime, loc=UTC, time_zone '+00:00', clientFoundRows, READ COMMITTED, autocommit, wait_timeout of at
//	        most 5 min (a frozen process must not hold its locks for hours), innodb_lock_wait_timeout of at most 10 s;
//	        driver github.com/go-sql-driver/mysql, wrapped or not
//	SQLite  journal_mode WAL, synchronous FULL, a busy_timeout; better also _txlock=immediate;
//	        driver modernc.org/sqlite, wrapped or not
//
// A local transaction keeps one connection to itself: a pool needs at least two if anything else is read meanwhile.
//
// # Failure handling
//
// DB.InTx and every strategy answer nil, halfbox.ErrRolledBack or halfbox.ErrUnknown, see package halfbox.
//
// A lock conflict (deadlock, lock wait, busy file) ends the transaction, which is repeated as a whole, the function
// included, up to five times: also when the function takes no notice of the error, since MySQL has rolled back what came
// before a deadlock and would commit what comes after it one by one. With SQL the function has the transaction itself, and
// must return such errors. On MySQL a function must not use statements that commit by themselves (DDL).
//
// Clocks: facts carry the application's UTC time, due times the database's. Everything here is safe for concurrent
// use.
package localtx
