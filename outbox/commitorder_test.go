package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
)

// TestCommitOrderIsNotIDOrder: the lower id commits last and is delivered all the same (R1).
func TestCommitOrderIsNotIDOrder(t *testing.T) {
	t.Parallel()
	e := newMySQL(t)
	db := e.db(t)
	w := newTestWriter(t, db)
	sink := newFakeSink(nil)
	r := newTestRelay(t, testConfig(t, db, sink))
	start(t, r)
	written, finish := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- db.InTx(context.Background(), func(tx *gorm.DB) error {
			at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
			if err != nil {
				return err
			}
			if err := w.WriteTx(tx, event("A"), at); err != nil {
				return err
			}
			close(written)
			<-finish
			return nil
		})
	}()
	<-written
	write(t, db, "B", 3)
	eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 3 }, "later ids do not wait for an open transaction")
	close(finish)
	require.NoError(t, <-done)
	eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == 4 }, "")
	require.Less(t, entryOf(t, db, "A").ID, entryOf(t, db, "B0").ID)
	require.Equal(t, 1, sink.count()["A"])
}

// TestManyWritersLoseNothing: 16 writers, some of which roll back, a slow sink, two relays (R3).
func TestManyWritersLoseNothing(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e *engine) {
		const writers, each = 16, 25
		db := e.db(t)
		sink := newFakeSink(func(ctx context.Context, _ []Record) error { sleep(ctx, time.Millisecond); return nil })
		sinks := []*fakeSink{sink, newFakeSink(sink.answer)}
		var nudge func()
		for i, s := range sinks {
			cfg := testConfig(t, e.db(t), s)
			cfg.Instance, cfg.Lease = fmt.Sprint("relay", i), time.Hour // a late write-back must not be a reason to send again
			r := newTestRelay(t, cfg)
			nudge = r.Nudge
			start(t, r)
		}
		w := newTestWriter(t, db, func(c *WriterConfig) { c.Nudge = nudge })
		var mu sync.Mutex
		want := map[string]int{}
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for n := range each {
					subject := fmt.Sprintf("W%d-%d", i, n)
					_, err := w.PublishInTx(context.Background(), event(subject), func(tx *gorm.DB, at halfbox.Attempt) error {
						if err := insertLocal(tx, at); err != nil {
							return err
						}
						if n%5 == 0 {
							return errors.New("business says no")
						}
						return nil
					})
					if err == nil {
						mu.Lock()
						want[subject] = 1
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		require.Len(t, want, writers*each*4/5)
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == len(want) }, "")
		got := sinks[0].count()
		for subject, n := range sinks[1].count() {
			got[subject] += n
		}
		require.Equal(t, want, got)
	})
}
