package rocketmq_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	requireReached(t, r)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, b.Stop(ctx))
	var works bool
	var err error
	require.Eventually(t, func() bool { works, err = r.Check(t.Context()); return !works }, wait, tick)
	require.ErrorContains(t, err, "broker "+b.Addr())
	brokertest.Restart(t, b)
	requireReached(t, r)

	nobody := rocketmq.NewReach([]string{"127.0.0.1:1"}, topic, rocketmq.Credentials{})
	works, err = nobody.Check(t.Context())
	require.False(t, works)
	require.ErrorContains(t, err, "name server")
}

// requireReached waits until all is well. A look is short, so one at a bad moment may find a name server too slow.
func requireReached(t testing.TB, r *rocketmq.Reach) {
	t.Helper()
	require.Eventually(t, func() bool { works, err := r.Check(t.Context()); return works && err == nil }, wait, tick)
}

// Who knows the brokers can do without the name server, which is said all the same.
func TestReachWithoutNameServer(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	wire := enginetest.NewRocketMQProxy(t, []string{b.Addr()})
	r := rocketmq.NewReach(wire.NameServers(), topic, rocketmq.Credentials{})
	requireReached(t, r)
	wire.NameServer(0).Cut()
	var err error
	require.Eventually(t, func() bool {
		var works bool
		works, err = r.Check(t.Context())
		return works && err != nil
	}, wait, tick)
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
	began := time.Now()
	_, err := r.Check(gone)
	require.Error(t, err)
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			works, err := r.Check(t.Context())
			for (!works || err != nil) && time.Since(began) < wait { // a look was too slow
				if errors.Is(err, context.Canceled) {
					t.Error("it was told what one found who left")
				}
				<-time.After(tick)
				works, err = r.Check(t.Context())
			}
			if !works || err != nil {
				t.Error(works, err)
			}
		})
	}
	asking.Wait()
	// A name server and a broker are asked, by the one who left too, and then twice a second at most.
	require.LessOrEqual(t, requests.Load(), int32(2*(2+time.Since(began)/(500*time.Millisecond))))
}
