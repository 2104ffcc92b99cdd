package app_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

// BenchmarkCommitToCredit sends 100 orders per second to one process and reports how long after its order was made
// (t_order.created_at) each was credited (t_points_record.created_at), by the clock of the one machine.
func BenchmarkCommitToCredit(b *testing.B) {
	for _, delivery := range []string{"txmsg", "outbox"} {
		b.Run(delivery, func(b *testing.B) {
			dir := b.TempDir()
			a := start(b, config(b, dir))
			const rate = 100
			n := max(b.N, rate)
			b.ResetTimer()
			tick := time.NewTicker(time.Second / rate)
			defer tick.Stop()
			for i := range n {
				<-tick.C
				post(b, a, fmt.Sprintf(`{"user_id":%d,"amount_cents":100,"delivery":%q}`, 1+i%50, delivery))
			}
			b.StopTimer()
			latencies := awaitCredits(b, dir, n)
			ms := func(q float64) float64 { return latencies[int(q*float64(n-1))].Seconds() * 1000 }
			b.ReportMetric(ms(0.50), "p50-ms")
			b.ReportMetric(ms(0.95), "p95-ms")
			b.ReportMetric(ms(0.99), "p99-ms")
			b.ReportMetric(0, "ns/op") // paced by the rate
		})
	}
}

// awaitCredits waits until all n orders are credited and returns how long each took, sorted.
func awaitCredits(b *testing.B, dir string, n int) []time.Duration {
	b.Helper()
	times := func(name, table string) map[string]time.Time {
		db, err := database.OpenSQLite(filepath.Join(dir, name+".db"), database.Options{})
		require.NoError(b, err)
		defer func() { require.NoError(b, db.Close()) }()
		var rows []struct {
			OrderNo   string
			CreatedAt time.Time
		}
		require.NoError(b, db.Read.Table(table).Select("order_no", "created_at").Scan(&rows).Error)
		at := map[string]time.Time{}
		for _, r := range rows {
			at[r.OrderNo] = r.CreatedAt
		}
		return at
	}
	var credited map[string]time.Time
	require.Eventually(b, func() bool { credited = times("points", "t_points_record"); return len(credited) == n }, wait, 50*time.Millisecond)
	var took []time.Duration
	for no, made := range times("order", "t_order") {
		took = append(took, credited[no].Sub(made))
	}
	slices.Sort(took)
	return took
}
