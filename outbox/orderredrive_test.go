package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRedriveAndPurgeBesideOrderedRelays: two relays of an ordered sink work while the dead letters that hold keys are
// redriven or purged. Each key goes on where it stood, in its order, and the list of blocked keys becomes empty.
func TestRedriveAndPurgeBesideOrderedRelays(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		const keys, versions, dead = 8, 6, 3 // version 3 of every key dies
		db := e.db(t)
		key := func(i int) string { return fmt.Sprint("K", i) }
		for i := range keys {
			writeVersions(t, db, key(i), 1, versions)
		}
		var mended atomic.Bool
		// One by one, so that nothing is sent again because of what was refused beside it.
		sink := limitedSink{newFakeSink(func(_ context.Context, batch []Record) error {
			if batch[0].AggregateVersion == dead && !mended.Load() {
				return Refused(errors.New("no such topic"))
			}
			return nil
		}), 1, 0}
		var relays []*Relay
		for i := range 2 {
			relays = append(relays, orderedRelay(t, e.db(t), mode, HeadOfLineBlock, sink, func(c *RelayConfig) {
				c.Instance, c.Lease = fmt.Sprint("relay", i), time.Hour
			}))
			start(t, relays[i])
		}
		blocked := func() map[string]int {
			t.Helper()
			found, err := BlockedKeys(t.Context(), db, "main", "", 0)
			require.NoError(t, err)
			by := map[string]int{}
			for _, k := range found {
				require.EqualValues(t, dead, k.Version)
				by[k.Key] = k.Waiting
			}
			return by
		}
		eventually(t, func() bool { return countStatus(t, db, StatusFail) == keys }, "every key is held")
		for k, waiting := range blocked() {
			require.Equal(t, versions-dead, waiting, k)
		}
		mended.Store(true)
		for i := range keys {
			op := operation1(Filter{Key: key(i), Sink: "main"})
			change := Redrive
			if i%2 == 1 {
				change = PurgeDead
			}
			res, err := change(t.Context(), db, op)
			require.NoError(t, err)
			require.Equal(t, 1, res.Changed)
			require.NotContains(t, blocked(), key(i))
		}
		eventually(t, func() bool { return countStatus(t, db, StatusSuccess) == keys*versions-keys/2 }, "all are sent but what was purged")
		require.Empty(t, blocked())
		next := map[string]int64{}
		for _, batch := range sink.all() {
			for _, r := range batch {
				if r.AggregateVersion <= next[r.PartitionKey] {
					require.EqualValues(t, dead, r.AggregateVersion, "only what was refused or redriven came again")
					continue
				}
				want := next[r.PartitionKey] + 1
				if want == dead && r.AggregateVersion != dead {
					want++ // purged
				}
				require.Equal(t, want, r.AggregateVersion, r.PartitionKey)
				next[r.PartitionKey] = r.AggregateVersion
			}
		}
		for i := range keys {
			require.EqualValues(t, versions, next[key(i)])
		}
		for _, r := range relays {
			require.Zero(t, totalMisses(r))
		}
	})
}
