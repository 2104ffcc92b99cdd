package txmsg_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/txmsg"
)

// Nobody is at the name server's address, or there is no such host: orders go to the outbox, and stopping is not held up.
func TestNameServerUnknown(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"nobody listens": "127.0.0.1:1", "no such host": "no-such-host.invalid:9876"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := embedded(t, sqliteAt(t))
			w.nameServers = []string{addr}
			n := w.node(t, nodeOptions{producer: func(c *txmsg.Config) { c.HalfTimeout = 300 * time.Millisecond }})
			_, err := n.publish(t)
			requireUnavailable(t, err)
			require.ErrorContains(t, err, "broker has not been found yet")
			require.ErrorContains(t, n.producer.Ready(), "not known to the broker")

			n = w.node(t, nodeOptions{fallback: true, producer: func(c *txmsg.Config) { c.HalfTimeout = 300 * time.Millisecond }})
			o, _, err := n.service(t).Create(t.Context(), request)
			require.NoError(t, err)
			require.Equal(t, halfbox.DeliveryOutbox, o.Delivery)
		})
	}
}

// The client takes host names behind "http://" only. Ours takes what people write.
func TestNameServerByHostName(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		w.nameServers = slices.Clone(w.nameServers)
		for i, addr := range w.nameServers {
			w.nameServers[i] = strings.Replace(addr, "127.0.0.1", "localhost", 1)
			require.Contains(t, w.nameServers[i], "localhost:")
		}
		n := w.node(t, nodeOptions{})
		n.awaitReady(t)
		o, _, err := n.service(t).Create(t.Context(), request)
		require.NoError(t, err)
		n.requireOne(t, o)
	})
}

// The connection stays open and nothing comes back: the caller waits for its deadline and no longer. What was sent
// arrives when the silence ends; it is a half message of nobody and is rolled back by its check.
func TestBrokerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		proxy := enginetest.NewRocketMQProxy(t, w.nameServers)
		w.nameServers = proxy.NameServers()
		n := w.node(t, nodeOptions{producer: func(c *txmsg.Config) { c.HalfTimeout = shortHalf }})
		n.awaitReady(t)
		proxy.Broker(t).Blackhole()
		began := time.Now()
		_, _, err := n.service(t).Create(t.Context(), request)
		requireUnavailable(t, err)
		require.ErrorContains(t, err, "not acknowledged in time")
		require.Less(t, time.Since(began), wait, "the client's own timeouts are longer")
		proxy.Broker(t).Pass()
		n.requireRecovered(t)
		orders, _ := n.rows(t)
		require.Len(t, orders, 1, "the late half message ran nothing")
	})
}

// requireRecovered waits until an order is delivered as a transactional message again.
func (n *node) requireRecovered(t testing.TB) {
	t.Helper()
	n.requireDelivered(t, create(t, n.service(t)).MsgID, 1)
}

// Silence from the very start: the process starts, answers, is not ready, and becomes ready by itself.
func TestSilentBrokerAtTheStart(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		proxy := enginetest.NewRocketMQProxy(t, w.nameServers)
		proxy.Broker(t).Blackhole()
		w.nameServers = proxy.NameServers()
		n := w.node(t, nodeOptions{producer: func(c *txmsg.Config) { c.HalfTimeout = shortHalf }})
		_, err := n.publish(t)
		requireUnavailable(t, err)
		require.Error(t, n.producer.Ready())
		require.Never(t, func() bool { return n.producer.Ready() == nil }, 2*firstHeartbeatSeen, 10*tick,
			"ready although no heartbeat can have arrived")
		proxy.Broker(t).Pass()
		n.awaitReady(t)
		n.requireRecovered(t)
	})
}

func TestBrokerThatAnswersLate(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		proxy := enginetest.NewRocketMQProxy(t, w.nameServers)
		w.nameServers = proxy.NameServers()
		n := w.node(t, nodeOptions{producer: func(c *txmsg.Config) { c.HalfTimeout = shortHalf }})
		n.awaitReady(t)
		proxy.Broker(t).Delay(2*shortHalf, enginetest.ToClient)
		_, _, err := n.service(t).Create(t.Context(), request)
		requireUnavailable(t, err)
		proxy.Broker(t).Pass()
		// The half message was stored: its check buries it.
		require.Eventually(t, func() bool { _, tombstones := n.rows(t); return len(tombstones) == 1 }, 2*wait, tick)
		orders, tombstones := n.rows(t)
		require.Empty(t, orders)
		n.requireDelivered(t, tombstones[0].MsgID, 0)
		n.requireRecovered(t)
	})
}
