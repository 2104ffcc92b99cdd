package e2e

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// alternating sends every other order by the outbox.
func alternating(i int) string {
	if i%2 == 0 {
		return "txmsg"
	}
	return "outbox"
}

// A thousand orders, half of each delivery, from eight clients that repeat their key until they have an answer. At
// seeded moments, while requests are in flight, the API, the relay or the broker is killed; the broker stays away for
// a while. Every fifth order is cancelled by whoever made it. Then every other order in the table is credited exactly once,
// a cancelled one ends with net zero, and nothing else is credited.
func TestOutagesAndKills(t *testing.T) {
	t.Parallel()
	const seed, orders = 20261130, 1000
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := embeddedSite(t)
	// A record is a dead letter when its lease has run out five times, or when its sends have been late four times.
	s.env = append(s.env, "HALFBOX_OUTBOX_LEASE=6s", "HALFBOX_OUTBOX_SEND_TIMEOUT=2s")
	c := startCluster(t, s)
	relay := c.role(t, "relay")
	require.NotNil(t, relay)
	all := cancelling(5, wishes(orders, alternating))
	crowd := newCrowd(c.api.api, all)

	kills := map[string]int{}
	for next := 20 + rnd.IntN(60); next < orders; next += 20 + rnd.IntN(80) {
		crowd.await(t, next)
		switch victim := []string{"api", "relay", "broker"}[rnd.IntN(3)]; victim {
		case "api":
			c.api.kill()
			c.api = c.role(t, "api,points")
			require.NotNil(t, c.api)
			crowd.api.Store(c.api.api)
			kills[victim]++
		case "relay":
			relay.kill()
			relay = c.role(t, "relay")
			require.NotNil(t, relay)
			kills[victim]++
		case "broker":
			c.broker.kill()
			// Orders go on without it: by the outbox, and by the fallback.
			next += 10 + rnd.IntN(40)
			crowd.await(t, min(next, orders))
			c.broker = c.serveBroker(t, c.broker.broker)
			kills[victim]++
		}
	}
	crowd.done.Wait()
	t.Logf("seed %d: %d orders, killed %v, %d fell back", seed, orders, kills, crowd.fellBack.Load())
	require.Len(t, kills, 3, "this seed spares one of them: choose another")

	// A fresh process is known to the broker within seconds; one that outlived the broker is so after up to 30.
	require.Zero(t, c.api.stop(t))
	c.api = c.role(t, "api,points")
	require.NotNil(t, c.api)
	seen := map[string]string{}
	for _, w := range all {
		a := w.fulfil(t, c.api.api)
		require.Empty(t, seen[a.OrderNo])
		seen[a.OrderNo] = w.Key
	}
	c.requireSettled(t)
	require.Eventually(t, func() bool { s := c.statuses(t); return len(s) == 1 && s["SUCCESS"] > 0 }, wait, tick, "event records are left over")
	require.Zero(t, relay.stop(t))
	require.Zero(t, c.api.stop(t))
	c.requireBooks(t, all)
}

// crowd is eight clients that work through a list of wishes.
type crowd struct {
	api      atomic.Value // string: where the API is now
	answers  atomic.Int64
	fellBack atomic.Int64 // asked for by txmsg, delivered by the outbox
	done     sync.WaitGroup
}

func newCrowd(api string, all []wish) *crowd {
	c := &crowd{}
	c.api.Store(api)
	queue := make(chan wish, len(all))
	for _, w := range all {
		queue <- w
	}
	close(queue)
	for range 8 {
		c.done.Go(func() {
			for w := range queue {
				c.insist(w)
			}
		})
	}
	return c
}

// insist repeats a wish until it is fulfilled.
func (c *crowd) insist(w wish) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		a, err := w.once(c.api.Load().(string))
		if err == nil && a.made() {
			c.answers.Add(1)
			if w.Delivery != a.Via {
				c.fellBack.Add(1)
			}
			return
		}
		<-pause.C
	}
}

func (c *crowd) await(t testing.TB, answers int) {
	t.Helper()
	require.Eventually(t, func() bool { return c.answers.Load() >= int64(answers) }, wait, tick, "the clients make no progress")
}
