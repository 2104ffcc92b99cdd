package outbox

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// newTestBacklog returns a Backlog that looks once when it is started, and whose knowledge does not become old.
func newTestBacklog(t testing.TB, db *database.DB, change ...func(*BacklogConfig)) *Backlog {
	t.Helper()
	cfg := BacklogConfig{DB: db, Sink: "main", Limit: time.Minute, Policy: BacklogRefuse, Interval: time.Hour, Timeout: time.Minute}
	for _, c := range change {
		c(&cfg)
	}
	b, err := NewBacklog(cfg)
	require.NoError(t, err)
	return b
}

func startBacklog(t testing.TB, b *Backlog) {
	t.Helper()
	require.NoError(t, b.Start())
	t.Cleanup(func() { require.NoError(t, b.Stop(context.Background())) })
}

// overdue makes the waiting records due since d.
func overdue(t testing.TB, db *database.DB, d time.Duration) {
	t.Helper()
	s := newStore(db)
	_, err := s.exec(t.Context(), "UPDATE t_event_record SET next_retry_time = {now+} WHERE status IN ('WAIT', 'SENDING')", db.Dialect.Offset(-d))
	require.NoError(t, err)
}

// TestBacklogRefusesAndRecovers: without any relay the writer learns that nothing is sent; it refuses before anything
// is written, and goes on when a relay has caught up.
func TestBacklogRefusesAndRecovers(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		reg := prometheus.NewRegistry()
		b := newTestBacklog(t, e.db(t), func(c *BacklogConfig) { c.Registerer, c.Limit = reg, time.Hour })
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Backlog = b })
		publish := func(subject string) error {
			_, err := w.PublishInTx(t.Context(), event(subject), insertLocal)
			return err
		}
		look := func() {
			t.Helper()
			require.NoError(t, b.sample(t.Context()))
		}
		require.NoError(t, publish("A0"), "nothing is known yet")
		look()
		require.NoError(t, publish("A1"))

		overdue(t, db, 3*time.Hour)
		look()
		age, known := b.Age()
		require.True(t, known)
		require.Greater(t, age, 2*time.Hour)
		require.Greater(t, testutil.ToFloat64(b.metrics.oldest), 7200.0)
		require.EqualValues(t, 1, testutil.ToFloat64(b.metrics.over))
		ran := false
		_, err := w.PublishInTx(t.Context(), event("A2"), func(*gorm.DB, halfbox.Attempt) error { ran = true; return nil })
		require.ErrorIs(t, err, ErrBacklog)
		require.ErrorIs(t, err, halfbox.ErrRolledBack)
		require.ErrorContains(t, err, "the limit is 1h0m0s")
		require.False(t, ran, "refused before the local transaction")
		require.EqualValues(t, 1, testutil.ToFloat64(w.metrics.writes.WithLabelValues("refused")))
		require.ErrorIs(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			require.NoError(t, err)
			return w.WriteTx(tx, event("A3"), at)
		}), ErrBacklog)

		require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error {
			at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			require.NoError(t, err)
			return w.WithoutBacklog().WriteTx(tx, event("A3"), at)
		}), "a repair is taken")

		overdue(t, db, 50*time.Minute)
		look()
		age, _ = b.Age()
		require.Less(t, age, time.Hour)
		require.ErrorIs(t, b.check(), ErrBacklog, "not yet below three quarters of it")
		start(t, newTestRelay(t, testConfig(t, e.db(t), newFakeSink(nil))))
		eventually(t, func() bool { look(); return publish("A4") == nil }, "accepted again")
		require.Zero(t, testutil.ToFloat64(b.metrics.over))
	})
}

func TestBacklogWarnsOnly(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		log := &logRecorder{}
		b := newTestBacklog(t, db, func(c *BacklogConfig) { c.Policy, c.Logger = BacklogWarn, log.logger() })
		write(t, db, "A", 1)
		overdue(t, db, time.Hour)
		startBacklog(t, b)
		eventually(t, func() bool { return len(log.warnings()) > 0 }, "warned")
		require.Equal(t, []string{"the backlog is too old: is a relay running, and does it reach the sink?"}, log.warnings())
		require.EqualValues(t, 1, testutil.ToFloat64(b.metrics.over))
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Backlog = b })
		_, err := w.PublishInTx(t.Context(), event("A2"), insertLocal)
		require.NoError(t, err)
	})
}

// TestBacklogIsWhatIsDue: records that are done, dead, of another sink or in their backoff are none; records in the
// hands of a relay are.
func TestBacklogIsWhatIsDue(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		s := newStore(db)
		ageNow := func() time.Duration {
			age, err := s.oldestDue(t.Context(), "main", false)
			require.NoError(t, err)
			return age
		}
		require.Zero(t, ageNow())
		write(t, db, "A", 2)
		overdue(t, db, time.Hour)
		require.Greater(t, ageNow(), 59*time.Minute)
		for set, counts := range map[string]bool{
			"status = 'SUCCESS'": false, "status = 'FAIL'": false, "status = 'WAIT', sink = 'other'": false,
			"status = 'SENDING', sink = 'main', claim_owner = 'x', lease_until = next_retry_time": true,
		} {
			require.NoError(t, db.Write.Exec("UPDATE t_event_record SET "+set).Error)
			require.Equal(t, counts, ageNow() > 59*time.Minute, set)
		}
		overdue(t, db, -time.Hour)
		require.Zero(t, ageNow(), "not due for an hour")

		bury(t, db)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL', sink = 'main'").Error)
		overdue(t, db, time.Hour)
		_, err := Redrive(t.Context(), db, operation1(Filter{}))
		require.NoError(t, err)
		require.Less(t, ageNow(), time.Minute, "a redriven record begins anew")
	})
}

// TestBlockedKeyIsNoBacklog: what a dead letter holds waits for an operator. It must not refuse the writes of all.
func TestBlockedKeyIsNoBacklog(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		writeVersions(t, db, "A", 1, 3)
		overdue(t, db, time.Hour)
		require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL' WHERE aggregate_version = 1").Error)
		writeVersions(t, db, "B", 1, 1)
		for policy, counts := range map[HeadOfLine]bool{"": true, HeadOfLinePark: true, HeadOfLineBlock: false} {
			b := newTestBacklog(t, db, func(c *BacklogConfig) { c.HeadOfLine = policy })
			require.NoError(t, b.sample(t.Context()))
			require.Equal(t, counts, b.check() != nil, "policy %q", policy)
			age, _ := b.Age()
			require.Equal(t, counts, age > 59*time.Minute, "policy %q", policy)
			eventually(t, func() bool { // the database may count in milliseconds
				require.NoError(t, b.sample(t.Context()))
				age, _ = b.Age()
				return age > 0
			}, "B is due")
		}
		overdue(t, db, time.Hour) // B too
		b := newTestBacklog(t, db, func(c *BacklogConfig) { c.HeadOfLine = HeadOfLineBlock })
		require.NoError(t, b.sample(t.Context()))
		require.ErrorIs(t, b.check(), ErrBacklog)
	})
}

// TestBacklogFailsOpen: when the database cannot be asked, what was known counts for a while, then writes are accepted.
func TestBacklogFailsOpen(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		var broken atomic.Bool
		log := &logRecorder{}
		watched := e.open(t, database.Options{Hooks: database.Hooks{Before: func(_ database.Op, query string) error {
			if broken.Load() && strings.Contains(query, "t_event_record") {
				return errInjected
			}
			return nil
		}}})
		db := e.db(t)
		write(t, db, "A", 1)
		overdue(t, db, time.Hour)
		b := newTestBacklog(t, watched, func(c *BacklogConfig) { c.Logger, c.Interval = log.logger(), 100*time.Millisecond })
		startBacklog(t, b)
		eventually(t, func() bool { return b.check() != nil }, "refused")
		broken.Store(true)
		eventually(t, func() bool { return testutil.ToFloat64(b.metrics.errors) > 0 }, "noticed")
		eventually(t, func() bool { return b.check() == nil }, "open")
		_, known := b.Age()
		require.False(t, known)
		eventually(t, func() bool { return testutil.ToFloat64(b.metrics.over) == 0 }, "the metric says so too")
		eventually(t, func() bool { return slices.Contains(log.warnings(), "failed, going on: "+errInjected.Error()) }, "logged")
		broken.Store(false)
		eventually(t, func() bool { return b.check() != nil }, "refused again")
	})
}

func TestBacklogConfigAndLife(t *testing.T) {
	t.Parallel()
	db := newSQLite(t).db(t)
	for name, cfg := range map[string]BacklogConfig{
		"no database": {Sink: "main"}, "no sink": {DB: db}, "policy": {DB: db, Sink: "main", Policy: "shout"},
		"head of line": {DB: db, Sink: "main", HeadOfLine: "skip"},
		"limit":        {DB: db, Sink: "main", Limit: -1}, "interval": {DB: db, Sink: "main", Interval: 1},
	} {
		_, err := NewBacklog(cfg)
		require.Error(t, err, name)
	}
	b := newTestBacklog(t, db)
	require.NoError(t, b.Start())
	require.Error(t, b.Start())
	require.NoError(t, b.Stop(t.Context()))
	require.NoError(t, b.Stop(t.Context()))
	require.Error(t, b.Start())
}
