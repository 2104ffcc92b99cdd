package database

import "time"

// Dialect says which SQL a database speaks.
type Dialect string

// The dialects.
const (
	SQLite Dialect = "sqlite"
	MySQL  Dialect = "mysql"
)

// Now is the SQL expression of the database's present UTC time.
// On SQLite it is text of fixed width ("2006-01-02 15:04:05.000"), which sorts as it reads.
func (d Dialect) Now() string {
	if d == MySQL {
		return "UTC_TIMESTAMP(6)"
	}
	return "strftime('%Y-%m-%d %H:%M:%f','now')"
}

// NowPlus is the SQL expression of the database's present UTC time plus one argument, to be made by Offset.
func (d Dialect) NowPlus() string {
	if d == MySQL {
		return "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"
	}
	return "strftime('%Y-%m-%d %H:%M:%f','now',? || ' seconds')"
}

// Offset is the argument of NowPlus for d, which may be negative.
func (d Dialect) Offset(by time.Duration) any {
	if d == MySQL {
		return by.Microseconds()
	}
	return by.Seconds()
}
