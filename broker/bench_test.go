package broker_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/brokertest"
)

// Every benchmark counts acknowledged messages: each is durable when counted.
// Run with -benchtime=5s; the numbers depend on the disk's fsync.

func concurrently(b *testing.B, callers int, send func() error) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	start := time.Now()
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := send(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "msgs/s")
}

func BenchmarkSend(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			p := newProducer(b, brokertest.Start(b))
			body := make([]byte, 256)
			concurrently(b, callers, func() error {
				_, err := p.SendSync(b.Context(), primitive.NewMessage("orders", body))
				return err
			})
		})
	}
}

func BenchmarkTransaction(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			br := brokertest.Start(b)
			p := newTxProducer(b, br, "pg", listener{})
			body := make([]byte, 256)
			concurrently(b, callers, func() error {
				_, err := p.SendMessageInTransaction(b.Context(), primitive.NewMessage("orders", body))
				return err
			})
			eventually(b, func() bool { return br.OpenHalves() == 0 }, "halves stay open")
		})
	}
}

func BenchmarkBatchSend(b *testing.B) {
	for _, size := range []int{20, 100, 500} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			p := newProducer(b, brokertest.Start(b))
			body := make([]byte, 256)
			batch := make([]*primitive.Message, size)
			for i := range batch {
				batch[i] = primitive.NewMessage("orders", body)
				batch[i].WithProperty("UNIQ_KEY", unique())
			}
			b.ResetTimer()
			start := time.Now()
			for range b.N {
				_, err := p.SendSync(b.Context(), batch...)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(b.N*size)/time.Since(start).Seconds(), "msgs/s")
		})
	}
}
