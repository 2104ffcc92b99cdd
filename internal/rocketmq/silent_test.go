package rocketmq_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

// silentServer is the address of a machine that swallows what it is sent, as one without power does.
func silentServer(t testing.TB, target string) string {
	t.Helper()
	p := enginetest.NewProxy(t, target)
	p.Blackhole()
	return p.Addr()
}

// One of several name servers that says nothing makes nothing unready.
func TestReachWithASilentNameServer(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	r := rocketmq.NewReach([]string{silentServer(t, b.Addr()), b.Addr()}, topic, rocketmq.Credentials{})
	requireReached(t, r) // the name servers can do without it
}

// Nor does it hide that a broker is back.
func TestConsumerWithASilentNameServer(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	in := &inbox{}
	c := newConsumerOf(t, rocketmq.ConsumerConfig{
		NameServers: []string{silentServer(t, b.Addr()), b.Addr()}, Topic: topic, Group: "points-silent", Handle: in.collect,
	})
	c.Start()
	first := send(t, newProducer(t, b), "t", "x")
	require.Eventually(t, func() bool { return in.times(first) == 1 }, wait, tick)
	b = brokertest.Restart(t, b)
	id := send(t, newProducer(t, b), "t", "x")
	require.Eventually(t, func() bool { return in.times(id) > 0 }, wait, tick)
	require.Eventually(t, func() bool { return c.Ready() == nil }, wait, tick, "the broker's return is not noticed")
}
