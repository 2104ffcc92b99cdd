package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/doctor"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/outbox"
)

// examine runs the doctor, whose findings have a remedy unless they are ok.
func examine(t testing.TB, cfg doctor.Config) (not []doctor.Finding) {
	t.Helper()
	for _, f := range run(t, cfg) {
		if f.Verdict == doctor.OK {
			require.Empty(t, f.Remedy, f.Check)
			continue
		}
		require.NotEmpty(t, f.Remedy, f.Check)
		not = append(not, f)
	}
	return not
}

// requireFinding asserts that one finding speaks of something.
func requireFinding(t testing.TB, found []doctor.Finding, verdict doctor.Verdict, about, detail string) {
	t.Helper()
	for _, f := range found {
		if f.Verdict == verdict && strings.Contains(f.Check, about) && strings.Contains(f.Detail, detail) {
			return
		}
	}
	require.Failf(t, "not found", "%s: %s: %s in %+v", verdict, about, detail, found)
}

// A broker whose times do not follow one another as they must, before the topics are there.
func TestBrokerSettings(t *testing.T) {
	t.Parallel()
	r := enginetest.OwnRocketMQ(t, "transactionTimeOut=1000", "transactionOpBatchInterval=3000", "transactionCheckMax=2", "transactionCheckInterval=1000")
	cluster := &doctor.Cluster{NameServers: r.NameServers(), Topics: []string{"NOT_THERE"}, Groups: []string{"nobody"}}
	found := examine(t, doctor.Config{Cluster: cluster, Times: doctor.Times{Local: 3 * time.Second, Grace: 10 * time.Second}})
	requireFinding(t, found, doctor.Bad, "topic NOT_THERE", "no broker has it")
	requireFinding(t, found, doctor.Warning, "topic %RETRY%nobody", "not there yet")
	requireFinding(t, found, doctor.Bad, "transactions", "txmsg.local_timeout (3s) is not below transactionTimeOut (1s)")
	requireFinding(t, found, doctor.Bad, "transactions", "checkback.grace (10s) is not below transactionCheckMax x transactionCheckInterval (2s)")
	requireFinding(t, found, doctor.Bad, "transactions", "transactionTimeOut (1s) is not above transactionOpBatchInterval (3s)")
	require.Len(t, found, 5)

	cluster.CreatesTopics = true
	found = examine(t, doctor.Config{Cluster: cluster, Times: doctor.Times{Local: 500 * time.Millisecond, Grace: 900 * time.Millisecond}})
	requireFinding(t, found, doctor.Bad, "transactions", "transactionTimeOut (1s) is above checkback.grace (900ms)")
	requireFinding(t, found, doctor.Warning, "topic NOT_THERE", "no broker has it yet")
	require.Len(t, found, 4)

	r.Broker.Stop()
	require.Eventually(t, func() bool {
		found = examine(t, doctor.Config{Cluster: cluster})
		return len(found) == 3
	}, time.Minute, 100*time.Millisecond)
	requireFinding(t, found, doctor.Bad, "brokers of "+r.NameServers()[0], "knows no broker")
	r.NameServer.Stop()
	found = examine(t, doctor.Config{Cluster: cluster})
	require.Len(t, found, 1)
	requireFinding(t, found, doctor.Bad, "name server", "refused")
}

// What may be wrong with a MySQL schema and its DSN.
func TestMySQLFindings(t *testing.T) {
	t.Parallel()
	dsn := enginetest.MySQL(t)
	open := func(dsn string) *database.DB {
		db, err := database.OpenMySQL(dsn, database.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return db
	}
	of := func(db *database.DB) doctor.Config {
		return doctor.Config{Databases: []doctor.Database{{
			Name: "order", DB: db, Lines: []database.Line{outbox.Migrations()},
			Plans: []doctor.Plan{{Index: "idx_status_next_retry", Query: "SELECT id FROM t_event_record WHERE status = 'WAIT' AND sink = 'x' AND next_retry_time <= '2000-01-01' ORDER BY next_retry_time, id LIMIT 20"}},
		}}}
	}
	db := open(dsn)
	requireFinding(t, examine(t, of(db)), doctor.Bad, "order database: tables", "is not applied")
	require.NoError(t, db.Migrate(t.Context(), outbox.Migrations()))
	for _, f := range examine(t, of(db)) {
		require.Equal(t, "order database: durability", f.Check, "the servers of tests do not sync: %+v", f)
	}
	loose := open(dsn + "?transaction_isolation=%27REPEATABLE-READ%27")
	requireFinding(t, examine(t, of(loose)), doctor.Warning, "order database: isolation", "REPEATABLE-READ")
	require.NoError(t, db.Write.Exec("ALTER TABLE t_event_record DROP INDEX idx_status_next_retry").Error)
	requireFinding(t, examine(t, of(db)), doctor.Bad, "index idx_status_next_retry", "not used")
}
