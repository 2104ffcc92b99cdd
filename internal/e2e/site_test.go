package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// site is where the processes of one test run: their data folder and their engines.
type site struct {
	data string
	env  []string // of every process
	// dsn holds the DSNs of "order" and "points"; nil on the embedded engines.
	dsn map[string]string
}

// onEachSite runs a test on the embedded engines and, where there are some, on MySQL and RocketMQ.
func onEachSite(t *testing.T, test func(t *testing.T, s *site)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, embeddedSite(t))
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, realSite(t))
	})
}

// embeddedSite has SQLite files and an in-process broker that asks soon.
func embeddedSite(t testing.TB) *site {
	t.Helper()
	return &site{data: t.TempDir(), env: append(quickOutbox(),
		"HALFBOX_BROKER_LISTEN=127.0.0.1:0",
		"HALFBOX_BROKER_TRANSACTION_TIMEOUT=1s", "HALFBOX_BROKER_CHECK_INTERVAL=500ms", "HALFBOX_CHECKBACK_GRACE=1s",
		// The client registers again up to 30 s after a restart of the broker, which must not run out of checks by then.
		"HALFBOX_BROKER_CHECK_MAX=1000",
		"HALFBOX_TXMSG_HALF_TIMEOUT=500ms", "HALFBOX_TXMSG_LOCAL_TIMEOUT=900ms",
	)}
}

// realSite has schemas, topics and groups of its own on the shared servers, whose broker asks after 2 s.
func realSite(t testing.TB) *site {
	t.Helper()
	return newRealSite(t, enginetest.MySQL(t), enginetest.MySQL(t), enginetest.RocketMQ(t))
}

func newRealSite(t testing.TB, orderDSN, pointsDSN string, nameServers []string) *site {
	t.Helper()
	return &site{
		data: t.TempDir(),
		dsn:  map[string]string{"order": orderDSN, "points": pointsDSN},
		env: append(quickOutbox(),
			"HALFBOX_DATABASE_DRIVER=mysql", "HALFBOX_DATABASE_MIGRATE=always",
			"HALFBOX_DATABASE_ORDER_DSN="+orderDSN, "HALFBOX_DATABASE_POINTS_DSN="+pointsDSN,
			"HALFBOX_ROCKETMQ_NAME_SERVERS="+nameServers[0],
			"HALFBOX_ROCKETMQ_ORDER_TOPIC="+enginetest.Name(t, "topic"),
			"HALFBOX_ROCKETMQ_TRANSACTION_GROUP="+enginetest.Group(t),
			"HALFBOX_ROCKETMQ_RELAY_GROUP="+enginetest.Group(t),
			"HALFBOX_ROCKETMQ_POINTS_GROUP="+enginetest.Group(t),
			"HALFBOX_TXMSG_LOCAL_TIMEOUT=1s", "HALFBOX_CHECKBACK_GRACE=2500ms",
		),
	}
}

// quickOutbox makes leases run out soon.
func quickOutbox() []string {
	return []string{"HALFBOX_OUTBOX_LEASE=1500ms", "HALFBOX_OUTBOX_SEND_TIMEOUT=500ms", "HALFBOX_OUTBOX_RECLAIM_INTERVAL=250ms"}
}

// patient has nothing sent again, and nothing sent another way, because of a pause of the machine.
func patient() []string {
	return []string{"HALFBOX_TXMSG_HALF_TIMEOUT=15s", "HALFBOX_OUTBOX_LEASE=10m", "HALFBOX_OUTBOX_SEND_TIMEOUT=1m"}
}

// another is a new site of the same kind.
func (s *site) another(t testing.TB) *site {
	t.Helper()
	if s.embedded() {
		return embeddedSite(t)
	}
	return realSite(t)
}

func (s *site) embedded() bool { return s.dsn == nil }

// open opens the database "order" or "points".
func (s *site) open(t testing.TB, name string) *database.DB {
	t.Helper()
	var db *database.DB
	var err error
	if s.embedded() {
		db, err = database.OpenSQLite(filepath.Join(s.data, name+".db"), database.Options{})
	} else {
		db, err = database.OpenMySQL(s.dsn[name], database.Options{})
	}
	require.NoError(t, err)
	return db
}

// query reads from a database into a slice, a struct or a number.
func (s *site) query(t testing.TB, name, sql string, into any) {
	t.Helper()
	db := s.open(t, name)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.Read.Raw(sql).Scan(into).Error)
}

// serve starts "halfbox serve" and waits until it is ready. It returns nil when the process died before, which only
// armed crash points may do.
func (s *site) serve(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--data", s.data, "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
	return awaitReady(t, append(append([]string{}, s.env...), env...), args...)
}

// ownHost is a loopback address that nothing else listens at or connects from: a port of it that was free a moment ago
// still is.
const ownHost = "127.0.0.2"

// serveBroker starts "halfbox broker" on an address, which may be that of an earlier one.
func (s *site) serveBroker(t testing.TB, addr string) *process {
	t.Helper()
	p := awaitReady(t, s.env, "broker", "--data", s.data, "--listen", addr)
	require.NotNil(t, p)
	return p
}
