package rocketmq_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

// Reach says whether RocketMQ can be used now.
func TestReach(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	r := rocketmq.NewReach([]string{b.Addr()}, topic, rocketmq.Credentials{})
	works, err := r.Check(t.Context())
	require.True(t, works)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, b.Stop(ctx))
	require.Eventually(t, func() bool { works, err = r.Check(t.Context()); return !works }, wait, tick)
	require.ErrorContains(t, err, "broker "+b.Addr())
	brokertest.Restart(t, b)
	require.Eventually(t, func() bool { works, err = r.Check(t.Context()); return works && err == nil }, wait, tick)

	nobody := rocketmq.NewReach([]string{"127.0.0.1:1"}, topic, rocketmq.Credentials{})
	works, err = nobody.Check(t.Context())
	require.False(t, works)
	require.ErrorContains(t, err, "name server")
}

// Who knows the brokers can do without the name server, which is said all the same.
func TestReachWithoutNameServer(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	wire := enginetest.NewRocketMQProxy(t, []string{b.Addr()})
	r := rocketmq.NewReach(wire.NameServers(), topic, rocketmq.Credentials{})
	works, err := r.Check(t.Context())
	require.True(t, works)
	require.NoError(t, err)
	wire.NameServer(0).Cut()
	require.Eventually(t, func() bool { works, err = r.Check(t.Context()); return err != nil }, wait, tick)
	require.True(t, works)
	require.ErrorContains(t, err, "name server")
}

// However many ask, the cluster is not asked for each; and one who leaves spoils nothing.
func TestReachIsAskedByMany(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnRequest = func(broker.Request) broker.Action { requests.Add(1); return broker.Action{} }
	})
	r := rocketmq.NewReach([]string{b.Addr()}, topic, rocketmq.Credentials{})
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err := r.Check(gone)
	require.Error(t, err)
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			if works, err := r.Check(t.Context()); !works || err != nil {
				t.Error(works, err)
			}
		})
	}
	asking.Wait()
	require.LessOrEqual(t, requests.Load(), int32(10))
}
