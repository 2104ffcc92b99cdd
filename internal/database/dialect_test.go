package database_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// text reads one expression as the database has it, not as the driver would convert it.
func text(t testing.TB, db *database.DB, expr string, args ...any) string {
	t.Helper()
	var s string
	require.NoError(t, db.Read.Raw("SELECT "+asText(db.Dialect, expr), args...).Scan(&s).Error)
	return s[1:]
}

// asText marks the text, so that no driver takes it for a time and writes it in its own way.
func asText(d database.Dialect, expr string) string {
	if d == database.MySQL {
		return "CONCAT('=', " + expr + ")"
	}
	return "'=' || " + expr
}

func clockOf(t *testing.T, db *database.DB, layout string, unit time.Duration) {
	d := db.Dialect
	t.Run("now is UTC, fixed width", func(t *testing.T) {
		before := time.Now().UTC().Truncate(unit)
		now := text(t, db, d.Now())
		after := time.Now().UTC()
		require.Len(t, now, len(layout))
		at, err := time.Parse(layout, now)
		require.NoError(t, err)
		require.WithinRange(t, at, before.Add(-unit), after.Add(unit))
	})
	t.Run("offsets sort as they are", func(t *testing.T) {
		offsets := []time.Duration{
			-10 * 365 * 24 * time.Hour, -time.Hour, -1500 * time.Millisecond, -time.Second, -10 * time.Millisecond,
			0, 10 * time.Millisecond, time.Second, 1001 * time.Millisecond, time.Hour, 100 * 24 * time.Hour,
		}
		// One statement, so that they share one present time.
		query, args := "SELECT ", []any{}
		for i, o := range offsets {
			if i > 0 {
				query += ", "
			}
			query += fmt.Sprintf("%s AS c%d", asText(d, d.NowPlus()), i)
			args = append(args, d.Offset(o))
		}
		texts := make([]string, len(offsets))
		fields := make([]any, len(offsets))
		for i := range texts {
			fields[i] = &texts[i]
		}
		require.NoError(t, db.Read.Raw(query, args...).Row().Scan(fields...))
		var base time.Time
		for i := range offsets {
			texts[i] = texts[i][1:]
			require.Len(t, texts[i], len(layout), "%v", offsets[i])
			if offsets[i] == 0 {
				base, _ = time.Parse(layout, texts[i])
			}
		}
		require.True(t, slices.IsSorted(texts), "%v", texts)
		for i, o := range offsets {
			at, err := time.Parse(layout, texts[i])
			require.NoError(t, err)
			require.WithinDuration(t, base.Add(o), at, unit)
		}
	})
	t.Run("below the unit", func(t *testing.T) {
		for _, o := range []time.Duration{0, time.Nanosecond, -time.Nanosecond, unit / 2, -unit / 2, unit - 1, 1 - unit} {
			before := time.Now()
			got := text(t, db, d.NowPlus(), d.Offset(o))
			require.Len(t, got, len(layout), "%v", o)
			at, err := time.Parse(layout, got)
			require.NoError(t, err, "%v", o)
			require.WithinRange(t, at, before.Add(-2*unit), time.Now().Add(2*unit), "%v", o)
		}
	})
	t.Run("due", func(t *testing.T) {
		columnType := map[database.Dialect]string{database.SQLite: "DATETIME", database.MySQL: "DATETIME(6)"}[d]
		mustExec(t, db, "CREATE TABLE due (id INTEGER PRIMARY KEY, at "+columnType+" NOT NULL)")
		before := time.Now()
		for id, o := range []time.Duration{-time.Hour, -20 * time.Millisecond, 0, time.Hour} {
			mustExec(t, db, "INSERT INTO due (id, at) VALUES (?, "+d.NowPlus()+")", id, d.Offset(o))
		}
		var due []int
		require.NoError(t, db.Read.Raw("SELECT id FROM due WHERE at <= "+d.Now()+" ORDER BY id").Scan(&due).Error)
		require.Equal(t, []int{0, 1, 2}, due, "due now means due now")
		var at time.Time
		require.NoError(t, db.Read.Raw("SELECT at FROM due WHERE id = 3").Scan(&at).Error)
		require.Equal(t, time.UTC, at.Location())
		require.WithinRange(t, at, before.Add(time.Hour-unit), time.Now().Add(time.Hour+unit))
	})
}

func TestClockOfSQLite(t *testing.T) {
	t.Parallel()
	clockOf(t, newDB(t, database.Options{}), "2006-01-02 15:04:05.000", time.Millisecond)
}

func TestClockOfMySQL(t *testing.T) {
	t.Parallel()
	clockOf(t, newMySQL(t, database.Options{}), "2006-01-02 15:04:05.000000", time.Microsecond)
}
