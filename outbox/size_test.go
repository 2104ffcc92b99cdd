package outbox

import (
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// TestClaimReadsNoMoreRowsAsTheTableGrows counts the rows that MySQL's storage engine reads for one claim, reclaim,
// sample of the backlog and page of dead letters: their number is the same whatever else the table holds (R37). Time
// would only say how busy the machine is.
func TestClaimReadsNoMoreRowsAsTheTableGrows(t *testing.T) {
	t.Parallel()
	claimsReadTheSame(t, newMySQL(t), 1000, 20_000)
}

// TestAtTwoMillionRecords is the same, and every plan, at the size of a busy table. It is run by HALFBOX_TEST_LARGE=1
// only, and without the race detector, which makes SQLite crawl.
func TestAtTwoMillionRecords(t *testing.T) {
	if os.Getenv("HALFBOX_TEST_LARGE") == "" {
		t.Skip("takes a minute without the race detector, and much longer with it; set HALFBOX_TEST_LARGE=1")
	}
	t.Run("mysql", func(t *testing.T) { claimsReadTheSame(t, newMySQL(t), 1_000_000, 2_000_000) })
	t.Run("sqlite", func(t *testing.T) {
		db := newSQLite(t).db(t)
		write(t, db, "due", 60)
		for from := range 2 {
			fillWith(t, db, "s", StatusSuccess, from*1_000_000, (from+1)*1_000_000)
			began := time.Now()
			require.NoError(t, CheckIndexes(t.Context(), db))
			t.Logf("guard at %d million: %v", from+1, time.Since(began))
			explainEveryStatement(t, db)
		}
	})
}

// claimsReadTheSame compares what one round reads with no record done and with each number of them.
func claimsReadTheSame(t *testing.T, e *engine, sizes ...int) {
	t.Helper()
	db := e.open(t, database.Options{MaxOpen: 1}) // the counters are the session's
	write(t, db, "dead", 30)
	bury(t, db)
	write(t, db, "due", 60)
	none := oneRound(t, db)
	require.Positive(t, none["Handler_read_next"]+none["Handler_read_key"])
	done := 0
	for _, size := range sizes {
		fillWith(t, db, "s", StatusSuccess, done, size)
		done = size
		for range 2 { // the first round is not the last that a table of this size sees
			got := oneRound(t, db)
			require.Equal(t, none, got, "with %d records done", size)
		}
		began := time.Now()
		require.NoError(t, CheckIndexes(t.Context(), db))
		t.Logf("guard with %d records done: %v", size, time.Since(began))
		explainEveryStatement(t, db)
	}
}

// oneRound claims, gives back, and looks; it returns by how much the session's counters of rows read went up.
func oneRound(t *testing.T, db *database.DB) map[string]int64 {
	t.Helper()
	s := newStore(db)
	require.NoError(t, db.Write.Exec("FLUSH STATUS").Error)
	for _, mode := range []ClaimMode{ClaimSkipLocked, ClaimConditionalUpdate} {
		c, err := s.takeClaim(t.Context(), mode, claimRequest{sink: "main", owner: string(mode), limit: 20, lease: time.Minute})
		require.NoError(t, err)
		require.Len(t, c.rows, 20)
		n, err := s.release(t.Context(), c.owner, ids(c.rows))
		require.NoError(t, err)
		require.EqualValues(t, 20, n)
	}
	_, err := s.expired(t.Context(), reclaimBatch)
	require.NoError(t, err)
	age, err := s.oldestDue(t.Context(), "main", true)
	require.NoError(t, err)
	require.Positive(t, age)
	page, err := s.search(t.Context(), Filter{Status: StatusFail, Error: "topic"})
	require.NoError(t, err)
	require.Len(t, page.Entries, 30)
	type counter struct {
		name  string
		value int64
	}
	counters, err := collect(db.Write.Raw("SHOW SESSION STATUS LIKE 'Handler_read_%'"), func(rs *sql.Rows) (c counter, err error) {
		return c, rs.Scan(&c.name, &c.value)
	})
	require.NoError(t, err)
	read := map[string]int64{}
	for _, c := range counters {
		// SHOW itself reads a table of its own; see below.
		if c.name == "Handler_read_next" || c.name == "Handler_read_key" || c.name == "Handler_read_first" {
			read[c.name] = c.value
		}
	}
	return read
}
