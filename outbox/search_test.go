package outbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// mixed writes n records for each of two sinks, of two types and three keys, in every state.
func mixed(t testing.TB, db *database.DB, n int) {
	t.Helper()
	for _, sink := range []string{"main", "other"} {
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Sink = sink })
		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			for i := range n {
				ev := event(fmt.Sprintf("%s-%04d", sink, i))
				ev.Type = []string{"order.created", "order.cancelled"}[i%2]
				ev.PartitionKey = fmt.Sprint("k", i%3)
				at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
				require.NoError(t, err)
				if err := w.WriteTx(tx, ev, at); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for i, set := range []string{
		"status = 'FAIL', last_error = 'refused: Topic does NOT exist'", "status = 'FAIL', last_error = 'retries exhausted: i/o timeout'",
		"status = 'SUCCESS'", "status = 'SENDING', claim_owner = 'x', lease_until = next_retry_time",
	} {
		require.NoError(t, db.Write.Exec(fmt.Sprintf("UPDATE t_event_record SET %s WHERE id %% 5 = %d", set, i)).Error)
	}
	// Many records have one due time, as after a redrive.
	s := newStore(db)
	_, err := s.exec(t.Context(), "UPDATE t_event_record SET next_retry_time = {now} WHERE id % 2 = 0")
	require.NoError(t, err)
	// A third was made a day ago.
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET created_at = ? WHERE id % 3 = 0", s.fact(time.Now().Add(-24*time.Hour))).Error)
}

// all pages through a search.
func searchAll(t testing.TB, db *database.DB, f Filter) (found []Entry, pages int) {
	t.Helper()
	for {
		page, err := Search(t.Context(), db, f)
		require.NoError(t, err)
		found = append(found, page.Entries...)
		pages++
		if page.Next == "" {
			return found, pages
		}
		f.After = page.Next
	}
}

// TestSearchFindsWhatMatches compares every combination of filters with what a scan of the table says.
func TestSearchFindsWhatMatches(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		mixed(t, db, 60)
		everything, _ := searchAll(t, db, Filter{})
		require.Len(t, everything, 120)
		for _, sink := range []string{"", "main", "nobody"} {
			for _, status := range append(Statuses(), "") {
				for _, f := range []Filter{
					{},
					{EventType: "order.created"},
					{Key: "k1"},
					{Error: "topic does not"},
					{OlderThan: time.Hour},
					{NewerThan: time.Hour},
					{BizNo: "main-0010"},
					{MsgID: everything[17].MsgID},
					{Key: "k2", EventType: "order.cancelled", Error: "timeout"},
					{Key: "nobody"},
				} {
					f.Sink, f.Status = sink, status
					var want []string
					for _, e := range everything {
						if f.matches(e, time.Now()) {
							want = append(want, e.BizNo)
						}
					}
					for _, limit := range []int{1, 7, 1000} {
						f.Limit = limit
						found, _ := searchAll(t, db, f)
						var got []string
						for _, e := range found {
							got = append(got, e.BizNo)
						}
						slices.Sort(want)
						slices.Sort(got)
						require.Equal(t, want, got, "%+v", f)
					}
				}
			}
		}
	})
}

// TestSearchReadsABoundedNumberOfRecords: a filter without an index is not a scan of the table in one call.
func TestSearchReadsABoundedNumberOfRecords(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		fill(t, db)
		f := Filter{EventType: "nobody"}
		page, err := Search(t.Context(), db, f)
		require.NoError(t, err)
		require.Empty(t, page.Entries)
		require.LessOrEqual(t, page.Scanned, maxScan+scanBatch)
		require.NotEmpty(t, page.Next, "there is more to look at")
		found, pages := searchAll(t, db, f)
		require.Empty(t, found)
		require.Greater(t, pages, 1)

		waiting, _ := searchAll(t, db, Filter{Status: StatusWait, Limit: 300})
		require.Len(t, waiting, 1000)
		require.True(t, slices.IsSortedFunc(waiting, func(a, b Entry) int { return a.NextRetryTime.Compare(b.NextRetryTime) }))

		for _, cursor := range []string{"?", "e30", "bnVsbA"} {
			_, err := Search(t.Context(), db, Filter{After: cursor})
			require.ErrorIs(t, err, ErrBadCursor, cursor)
		}
		_, err = Search(t.Context(), db, Filter{After: page.Next, Key: "k"})
		require.ErrorIs(t, err, ErrBadCursor)
	})
}
