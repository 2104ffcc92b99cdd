package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/halfbox/halfbox/internal/database"
)

// Plan is a query and the index it must be able to use.
type Plan struct {
	Index string
	Query string
}

// maxClockDifference is how far the clocks of this machine and of the database may differ before it is worth a
// warning: due times and leases go by the database's clock alone, so more only spoils what people compare by eye.
const maxClockDifference = time.Second

func (r *report) database(ctx context.Context, d Database) {
	name := d.Name + " database"
	if d.Unusable != nil {
		r.bad(name, d.Unusable.Error(), d.Remedy)
		return
	}
	if err := d.DB.Ping(ctx); err != nil {
		r.bad(name, err.Error(), "start the server, or correct its address, user or password (database."+d.Name+"_dsn)")
		return
	}
	r.server(ctx, name, d.DB)
	r.clock(ctx, name, d.DB)
	for _, line := range d.Lines {
		if err := d.DB.CheckMigrated(ctx, line); err != nil {
			r.bad(name+": tables", err.Error(), "halfbox migrate up")
			return
		}
	}
	r.ok(name+": tables", "up to date")
	r.plans(ctx, name, d)
}

func (r *report) server(ctx context.Context, name string, db *database.DB) {
	if db.Dialect == database.SQLite {
		var version, journal string
		err := db.Read.WithContext(ctx).Raw("SELECT sqlite_version()").Scan(&version).Error
		if err == nil {
			err = db.Read.WithContext(ctx).Raw("PRAGMA journal_mode").Scan(&journal).Error
		}
		if err != nil {
			r.bad(name, err.Error(), "check the file")
			return
		}
		r.ok(name, "SQLite %s, journal %s", version, journal)
		return
	}
	r.mysql(ctx, name, db)
}

// mysql checks the server and, on a session made as the service makes them, what the DSN came to.
func (r *report) mysql(ctx context.Context, name string, db *database.DB) {
	var v struct {
		Version, TimeZone, Isolation, Ssl string
		FlushLog                          int
		SyncBinlog                        int64
		WaitTimeout                       int
		ReadOnly                          bool
	}
	err := db.Read.WithContext(ctx).Raw(`SELECT VERSION() AS version, @@session.time_zone AS time_zone,
		@@session.transaction_isolation AS isolation, @@innodb_flush_log_at_trx_commit AS flush_log,
		@@sync_binlog AS sync_binlog, @@session.wait_timeout AS wait_timeout, @@global.read_only AS read_only`).Scan(&v).Error
	if err != nil {
		r.bad(name, err.Error(), "give the user the right to read its own session's variables")
		return
	}
	if err := db.Read.WithContext(ctx).Raw("SELECT VARIABLE_VALUE FROM performance_schema.session_status WHERE VARIABLE_NAME = 'Ssl_cipher'").Scan(&v.Ssl).Error; err != nil {
		v.Ssl = "unknown" // performance_schema may be off
	}
	if !supported(v.Version) {
		r.bad(name+": version", v.Version, "use MySQL 8.0.17 or newer")
	} else {
		cipher := v.Ssl
		if cipher == "" {
			cipher = "not encrypted"
		}
		r.ok(name+": version", "MySQL %s, %s", v.Version, cipher)
	}
	if v.TimeZone != "+00:00" && v.TimeZone != "UTC" {
		r.bad(name+": time zone", "the session's time zone is "+v.TimeZone, "remove time_zone from the DSN: halfbox sets +00:00")
	} else {
		r.ok(name+": time zone", "%s", v.TimeZone)
	}
	if v.Isolation != "READ-COMMITTED" {
		r.warn(name+": isolation", "the session's isolation is "+v.Isolation, "remove transaction_isolation from the DSN: halfbox sets READ-COMMITTED, which takes fewer locks")
	} else {
		r.ok(name+": isolation", "%s", v.Isolation)
	}
	if v.FlushLog != 1 || v.SyncBinlog != 1 {
		r.warn(name+": durability", fmt.Sprintf("innodb_flush_log_at_trx_commit=%d, sync_binlog=%d", v.FlushLog, v.SyncBinlog),
			"set both to 1, or a power cut may lose transactions that were answered as committed")
	} else {
		r.ok(name+": durability", "every commit is synced")
	}
	if v.ReadOnly {
		r.bad(name+": role", "the server is read-only", "name the primary: check-backs and leases must see and write the newest rows")
	}
}

// supported tells whether a server has CHECK constraints and utf8mb4_0900_bin, as MySQL has from 8.0.17 on. MariaDB's
// numbers are higher, and it lacks the collation.
func supported(version string) bool {
	return atLeast(version, 8, 0, 17) && !strings.Contains(strings.ToLower(version), "mariadb")
}

// atLeast compares a version such as "8.0.36-28" with the least one wanted.
func atLeast(version string, want ...int) bool {
	version, _, _ = strings.Cut(version, "-")
	parts := strings.Split(version, ".")
	for i, w := range want {
		if i == len(parts) {
			return false
		}
		if n, err := strconv.Atoi(parts[i]); err != nil || n != w {
			return err == nil && n > w
		}
	}
	return true
}

func (r *report) clock(ctx context.Context, name string, db *database.DB) {
	query := "SELECT CAST(ROUND(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) * 1000000) AS SIGNED)"
	if db.Dialect == database.SQLite {
		query = "SELECT CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
	}
	var micros int64
	before := time.Now()
	if err := db.Read.WithContext(ctx).Raw(query).Scan(&micros).Error; err != nil {
		r.bad(name+": clock", err.Error(), "the database must tell its time")
		return
	}
	after := time.Now()
	difference := time.UnixMicro(micros).Sub(before.Add(after.Sub(before) / 2)).Round(time.Millisecond)
	if difference.Abs() > maxClockDifference+after.Sub(before) {
		r.warn(name+": clock", fmt.Sprintf("the database's clock is %v from this machine's", difference), "synchronise both with NTP")
		return
	}
	r.ok(name+": clock", "%v from this machine's", difference)
}

// plans asks the database how it would run the queries that must not scan a table.
func (r *report) plans(ctx context.Context, name string, d Database) {
	missing := 0
	for _, p := range d.Plans {
		usable, err := usableIndexes(ctx, d.DB, p.Query)
		switch {
		case err != nil:
			missing++
			r.bad(name+": index "+p.Index, err.Error(), "halfbox migrate up")
		case !strings.Contains(usable, p.Index):
			missing++
			r.bad(name+": index "+p.Index, "not used for: "+p.Query, "make the index again as the migrations define it, and ANALYZE TABLE")
		}
	}
	if missing == 0 {
		r.ok(name+": indexes", "%d queries have theirs", len(d.Plans))
	}
}

// usableIndexes names the indexes that the optimizer considers: on an empty table it may choose to use none.
func usableIndexes(ctx context.Context, db *database.DB, query string) (string, error) {
	column, explain := "possible_keys", "EXPLAIN FORMAT=TRADITIONAL "
	if db.Dialect == database.SQLite {
		column, explain = "detail", "EXPLAIN QUERY PLAN "
	}
	var rows []map[string]any
	if err := db.Read.WithContext(ctx).Raw(explain + query).Scan(&rows).Error; err != nil {
		return "", err
	}
	var names []string
	for _, row := range rows {
		switch v := row[column].(type) {
		case []byte:
			names = append(names, string(v))
		case string:
			names = append(names, v)
		}
	}
	return strings.Join(names, " "), nil
}
