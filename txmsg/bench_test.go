package txmsg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
)

// BenchmarkOrder is one order through PublishInTx: half message, local transaction on SQLite with synchronous=FULL,
// END_TRANSACTION, on the in-process broker, whose acknowledgement waits for its own fsync.
func BenchmarkOrder(b *testing.B) {
	for name, parallelism := range map[string]int{"1-caller": 0, "32-callers": 16} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, rigOptions{broker: func(c *broker.Config) { c.TransactionTimeout, c.CheckInterval = time.Minute, time.Minute }})
			s := r.service(b)
			create := func() {
				if _, _, err := s.Create(b.Context(), request); err != nil {
					b.Error(err)
				}
			}
			create() // the first one loads the route
			b.ResetTimer()
			if parallelism == 0 {
				for b.Loop() {
					create()
				}
			} else {
				b.SetParallelism(parallelism) // times GOMAXPROCS
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						create()
					}
				})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
			b.StopTimer()
			require.Eventually(b, func() bool { return r.broker.OpenHalves() == 0 }, wait, tick)
		})
	}
}
