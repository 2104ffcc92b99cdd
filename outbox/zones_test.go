package outbox

import (
	"os"
	"os/exec"
	"testing"
	"time"
	_ "time/tzdata" // the child's zone, wherever it runs

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// zoneVariables tell the child of TestInstancesInDifferentZones which database is the parent's.
const (
	zoneDialect = "HALFBOX_TEST_ZONE_DIALECT"
	zoneDSN     = "HALFBOX_TEST_ZONE_DSN"
)

// TestInstancesInDifferentZones: a process in UTC and one in +08:00 work on one table, each on what the other wrote. What
// one makes due is due for the other, a lease lasts for both, ages are the same, and retention deletes nothing early (R47).
func TestInstancesInDifferentZones(t *testing.T) {
	if os.Getenv(zoneDSN) != "" {
		inAnotherZone(t)
		return
	}
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		db := e.db(t)
		sink := newFakeSink(nil)
		cfg := testConfig(t, db, sink)
		cfg.Retention, cfg.Lease = time.Hour, time.Hour
		r := newTestRelay(t, cfg)
		write(t, db, "parent", 4)
		c, err := r.store.takeClaim(t.Context(), r.cfg.Claim, claimRequest{sink: "main", owner: "parent", limit: 1, lease: 5 * time.Minute})
		require.NoError(t, err)
		require.Len(t, c.rows, 1)

		child := exec.Command(os.Args[0], "-test.run", "^TestInstancesInDifferentZones$", "-test.count", "1", "-test.timeout", "2m")
		child.Env = append(os.Environ(), "TZ=Asia/Shanghai", zoneDialect+"="+e.name, zoneDSN+"="+e.dsn)
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)

		require.Equal(t, 3, countStatus(t, db, StatusSuccess), "the child has sent what the parent wrote, but not what it holds")
		require.Equal(t, 1, countStatus(t, db, StatusSending))
		n, err := r.purgeOld(t.Context())
		require.NoError(t, err)
		require.Zero(t, n, "sent a moment ago, eight hours away")
		requireFresh(t, db)
		untilIdle(t, r)
		require.Len(t, sink.count(), 2, "what the child wrote is due here at once")
		expire(t, db)
		res, err := r.reclaimOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, res.reclaimed)
	})
}

// inAnotherZone is the process in +08:00.
func inAnotherZone(t *testing.T) {
	_, offset := time.Now().Zone()
	require.Equal(t, 8*60*60, offset)
	open := map[string]func(string, database.Options) (*database.DB, error){"sqlite": database.OpenSQLite, "mysql": database.OpenMySQL}
	db, err := open[os.Getenv(zoneDialect)](os.Getenv(zoneDSN), database.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	requireFresh(t, db)
	sink := newFakeSink(nil)
	cfg := testConfig(t, db, sink)
	cfg.Retention = time.Hour
	r := newTestRelay(t, cfg)
	res, err := r.reclaimOnce(t.Context())
	require.NoError(t, err)
	require.Zero(t, res, "the parent's lease holds")
	untilIdle(t, r)
	require.Len(t, sink.count(), 3)
	n, err := r.purgeOld(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, db.Write.Exec("DELETE FROM t_local").Error)
	write(t, db, "child", 2)
	requireFresh(t, db)
}

// requireFresh: every time of every record is now, whoever wrote it and whoever reads it.
func requireFresh(t *testing.T, db *database.DB) {
	t.Helper()
	st, err := Stats(t.Context(), db)
	require.NoError(t, err)
	require.Less(t, st.OldestUnsent["main"], 10*time.Minute)
	age, err := newStore(db).oldestDue(t.Context(), "main", false)
	require.NoError(t, err)
	require.Less(t, age, 10*time.Minute)
	for _, e := range entries(t, db) {
		for _, at := range []*time.Time{&e.CreatedAt, &e.NextRetryTime, e.ClaimedAt, e.LeaseUntil, e.SentAt} {
			if at != nil {
				require.WithinDuration(t, time.Now(), *at, 10*time.Minute)
			}
		}
	}
}
