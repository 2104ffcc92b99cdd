package outbox

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
)

func benchEngines(b *testing.B, bench func(b *testing.B, e *engine)) {
	b.Run("sqlite", func(b *testing.B) { bench(b, newSQLite(b)) })
	b.Run("mysql", func(b *testing.B) { bench(b, newMySQL(b)) })
}

// BenchmarkWrite compares a bare local transaction with one that writes its event record too.
func BenchmarkWrite(b *testing.B) {
	benchEngines(b, func(b *testing.B, e *engine) {
		db := e.db(b)
		b.Run("bare", func(b *testing.B) {
			for b.Loop() {
				at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
				if err == nil {
					err = db.InTx(b.Context(), func(tx *gorm.DB) error { return insertLocal(tx, at) })
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("outbox", func(b *testing.B) {
			w := newTestWriter(b, db)
			for b.Loop() {
				if _, err := w.PublishInTx(b.Context(), event(uuid.NewString()), insertLocal); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// BenchmarkDrain relays a backlog to a sink that takes no time.
func BenchmarkDrain(b *testing.B) {
	benchEngines(b, func(b *testing.B, e *engine) {
		for _, mode := range e.modes {
			for _, batch := range []int{20, 100, 500} {
				b.Run(fmt.Sprintf("%s/batch=%d", mode, batch), func(b *testing.B) {
					db := e.db(b)
					if err := db.Write.Exec("DELETE FROM t_event_record").Error; err != nil {
						b.Fatal(err)
					}
					fill(b, db)
					r := caughtUp(newTestRelay(b, RelayConfig{DB: db, Sinks: []Sink{newFakeSink(nil)}, Claim: mode, Batch: batch, BatchMax: -1}))
					again := func() { // 20,000 of the records that are done wait once more
						err := db.Write.Exec("UPDATE t_event_record SET status = 'WAIT' WHERE id <= (SELECT m FROM (SELECT MIN(id) + 20000 AS m FROM t_event_record) x)").Error
						if err != nil {
							b.Fatal(err)
						}
					}
					again()
					events := 0
					for b.Loop() {
						res, err := r.loops[0].runOnce(b.Context(), b.Context())
						if err != nil {
							b.Fatal(err)
						}
						events += res.claimed
						if res.claimed == 0 {
							b.StopTimer()
							again()
							b.StartTimer()
						}
					}
					b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
				})
			}
		}
	})
}
