package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// benchNumber is a size that the environment may change.
func benchNumber(b *testing.B, name string, otherwise int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(b, err)
	return n
}

// benchSite has api and relay in processes of their own on real engines, with the relay's settings as they are by default.
func benchSite(b *testing.B) (s *site, api *process, relay func() *process) {
	b.Helper()
	s = realSite(b)
	s.env = slices.DeleteFunc(s.env, func(v string) bool { return strings.HasPrefix(v, "HALFBOX_OUTBOX_") })
	api = s.serve(b, nil, "--roles", "api,points")
	return s, api, func() *process { return s.serve(b, nil, "--roles", "relay") }
}

// ordersAt makes n orders by the outbox at a rate per second and returns how long each request took, sorted.
func ordersAt(b *testing.B, api string, rate, n int) []time.Duration {
	b.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	took := make([]time.Duration, n)
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var asked sync.WaitGroup
	for i := range n {
		<-tick.C
		asked.Go(func() {
			began := time.Now()
			a, err := wish{UserID: int64(1 + i%50), Amount: 100, Delivery: "outbox"}.postWith(client, api)
			took[i] = time.Since(began)
			if err != nil || !a.made() {
				b.Errorf("%v %v", a, err)
			}
		})
	}
	asked.Wait()
	slices.Sort(took)
	return took
}

func reportMillis(b *testing.B, name string, sorted []time.Duration, q float64) {
	b.ReportMetric(float64(sorted[int(q*float64(len(sorted)-1))].Microseconds())/1000, name)
}

// BenchmarkCommitToBrokerApart makes HALFBOX_TEST_BENCH_LATENCIES orders (2000) at 200 a second, with api and relay in two
// processes, and reports how long the broker's confirmation came after the record was made: from before its commit
// (created_at) to behind its send (sent_at), by the clock of the one machine. Run it with -benchtime 1x.
func BenchmarkCommitToBrokerApart(b *testing.B) {
	s, api, startRelay := benchSite(b)
	startRelay()
	n := benchNumber(b, "HALFBOX_TEST_BENCH_LATENCIES", 2000)
	for b.Loop() {
		require.NoError(b, truncate(b, s))
		ordersAt(b, api.api, 200, n)
		awaitSent(b, s)
		var micros []int64
		s.query(b, "order", "SELECT TIMESTAMPDIFF(MICROSECOND, created_at, sent_at) FROM t_event_record", &micros)
		require.Len(b, micros, n)
		waits := make([]time.Duration, n)
		for i, m := range micros {
			waits[i] = time.Duration(m) * time.Microsecond
		}
		slices.Sort(waits)
		reportMillis(b, "p50ms", waits, 0.5)
		reportMillis(b, "p99ms", waits, 0.99)
	}
}

// BenchmarkAPIBesideADrain makes HALFBOX_TEST_BENCH_LATENCIES orders (2000) at 100 a second, first with no backlog and then while
// a relay drains one of HALFBOX_TEST_BENCH_EVENTS records (100,000), with the relay in a process of its own, and reports the p99
// of the requests and how much of the backlog was left at their end. Run it with -benchtime 1x.
func BenchmarkAPIBesideADrain(b *testing.B) {
	events := benchNumber(b, "HALFBOX_TEST_BENCH_EVENTS", 100_000)
	n := benchNumber(b, "HALFBOX_TEST_BENCH_LATENCIES", 2000)
	for b.Loop() {
		s, api, startRelay := benchSite(b)
		ordersAt(b, api.api, 100, 200) // connections and caches are warm
		relay := startRelay()
		awaitSent(b, s)
		quiet := ordersAt(b, api.api, 100, n)
		awaitSent(b, s)
		require.Zero(b, relay.stop(b))
		fillBacklog(b, s, events)
		startRelay()
		require.Eventually(b, func() bool { return unsent(b, s) < int64(events) }, wait, tick, "it drains")
		busy := ordersAt(b, api.api, 100, n)
		b.ReportMetric(float64(unsent(b, s)), "left")
		reportMillis(b, "quiet-p50ms", quiet, 0.5)
		reportMillis(b, "quiet-p99ms", quiet, 0.99)
		reportMillis(b, "drain-p50ms", busy, 0.5)
		reportMillis(b, "drain-p99ms", busy, 0.99)
	}
}

func unsent(b *testing.B, s *site) (n int64) {
	b.Helper()
	s.query(b, "order", "SELECT COUNT(*) FROM t_event_record WHERE status <> 'SUCCESS'", &n)
	return n
}

func awaitSent(b *testing.B, s *site) {
	b.Helper()
	require.Eventually(b, func() bool { return unsent(b, s) == 0 }, wait, 10*tick)
}

func truncate(b *testing.B, s *site) error {
	b.Helper()
	db := s.open(b, "order")
	defer func() { require.NoError(b, db.Close()) }()
	return db.Write.Exec("TRUNCATE t_event_record").Error
}

// fillBacklog makes records that are due, as copies of one that was sent.
func fillBacklog(b *testing.B, s *site, n int) {
	b.Helper()
	db := s.open(b, "order")
	defer func() { require.NoError(b, db.Close()) }()
	const rows = 2000
	var one struct{ ID int64 }
	require.NoError(b, db.Read.Raw("SELECT MIN(id) AS id FROM t_event_record").Scan(&one).Error)
	for from := 0; from < n; from += rows {
		ids := make([]string, min(rows, n-from))
		for i := range ids {
			ids[i] = fmt.Sprintf("SELECT 'backlog-%d' AS no", from+i)
		}
		require.NoError(b, insertCopies(db, one.ID, strings.Join(ids, " UNION ALL ")))
	}
}

func insertCopies(db *database.DB, of int64, numbers string) error {
	return db.Write.Exec(`INSERT INTO t_event_record (msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version, partition_key,
 destination, payload, headers, status, next_retry_time, created_at)
 SELECT n.no, sink, event_type, n.no, delivery, n.no, aggregate_version, n.no, destination, payload, headers, 'WAIT', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
 FROM t_event_record, (`+numbers+`) n WHERE id = ?`, of).Error
}
