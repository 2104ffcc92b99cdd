package outbox

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

func TestSeriesExistFromTheStart(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	reg := prometheus.NewPedanticRegistry()
	cfg := testConfig(t, db, newFakeSink(nil))
	cfg.Registerer = reg
	r := newTestRelay(t, cfg)
	families, err := reg.Gather()
	require.NoError(t, err)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	require.Equal(t, []string{
		"halfbox_outbox_attempts_total", "halfbox_outbox_backlog", "halfbox_outbox_blocked_keys", "halfbox_outbox_breaker_state", "halfbox_outbox_claim_duration_seconds",
		"halfbox_outbox_dead_total", "halfbox_outbox_lease_misses_total", "halfbox_outbox_oldest_unsent_age_seconds", "halfbox_outbox_overdue_leases",
		"halfbox_outbox_purged_total", "halfbox_outbox_reclaimed_total", "halfbox_outbox_send_duration_seconds",
	}, names)
	_, err = NewRelay(cfg)
	require.Error(t, err, "the same registry twice without a label")

	// And the gauges follow the database, down to zero too.
	gauge := func(status Status) float64 {
		return testutil.ToFloat64(r.metrics.backlog.WithLabelValues("main", string(status)))
	}
	write(t, db, "A", 3)
	// SQLite's clock counts milliseconds: what was written in this one has no age yet.
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET created_at = ?", time.Now().UTC().Add(-time.Second)).Error)
	require.NoError(t, r.statsOnce(t.Context()))
	require.EqualValues(t, 3, gauge(StatusWait))
	require.Positive(t, testutil.ToFloat64(r.metrics.oldest.WithLabelValues("main")))
	put(t, db, StatusSending, "me", -time.Minute)
	require.NoError(t, r.statsOnce(t.Context()))
	require.Zero(t, gauge(StatusWait))
	require.EqualValues(t, 3, gauge(StatusSending))
	require.EqualValues(t, 3, testutil.ToFloat64(r.metrics.overdue))
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS'").Error)
	require.NoError(t, r.statsOnce(t.Context()))
	require.Zero(t, gauge(StatusSending))
	require.Zero(t, testutil.ToFloat64(r.metrics.oldest.WithLabelValues("main")))
	require.Zero(t, testutil.ToFloat64(r.metrics.overdue))
}

func TestStats(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		st, err := Stats(t.Context(), db)
		require.NoError(t, err)
		require.Empty(t, st.Counts)
		require.Empty(t, st.OldestUnsent)

		write(t, db, "A", 4)
		old := time.Now().UTC().Add(-time.Hour)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET created_at = ? WHERE biz_no = 'A1'", old).Error)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'SUCCESS' WHERE biz_no = 'A0'").Error)
		st, err = Stats(t.Context(), db)
		require.NoError(t, err)
		require.ElementsMatch(t, []Count{{"main", StatusWait, 3}, {"main", StatusSuccess, 1}}, st.Counts)
		require.InDelta(t, time.Hour.Seconds(), st.OldestUnsent["main"].Seconds(), 60)

		// A clock that runs ahead makes no negative age.
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET created_at = ?", time.Now().UTC().Add(time.Hour)).Error)
		st, err = Stats(t.Context(), db)
		require.NoError(t, err)
		require.Zero(t, st.OldestUnsent["main"])

		found, err := List(t.Context(), db, Filter{Sink: "main", Status: StatusWait, Limit: 2})
		require.NoError(t, err)
		require.Len(t, found, 2)
		require.Equal(t, "A1", found[0].BizNo)
		found, err = List(t.Context(), db, Filter{EventType: "order.cancelled"})
		require.NoError(t, err)
		require.Empty(t, found)
	})
}
