package rocketmq_test

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

func TestStopBeforeStart(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	in := &inbox{}
	group := "points-" + uuid.NewString()
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: in.collect})
	stop(t, c)
	c.Start()
	require.Error(t, c.Ready())
	stop(t, c)
	require.False(t, b.HasConsumer(group), "a start after the stop does nothing")
}

func TestStartAndStopTwice(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	p := newProducer(t, b)
	in := &inbox{}
	c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Handle: in.collect})
	c.Start()
	c.Start()
	id := send(t, p, "t", "x")
	require.Eventually(t, func() bool { return in.times(id) == 1 }, wait, tick)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			if err := c.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	stop(t, c)
	require.Equal(t, 1, in.times(id))
}

// The service starts before its broker: the consumer tries until the broker is there.
func TestStartBeforeTheBroker(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	id := send(t, newProducer(t, b), "t", "x")
	addr := b.Addr()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, b.Stop(ctx))
	in := &inbox{}
	c := newConsumer(t, addr, rocketmq.ConsumerConfig{Handle: in.collect})
	c.Start()
	require.Never(t, func() bool { return c.Ready() == nil }, 500*time.Millisecond, tick, "there is no broker yet")
	brokertest.Restart(t, b)
	require.Eventually(t, func() bool { return c.Ready() == nil && in.times(id) > 0 }, wait, tick)
}

// A name server that takes connections and says nothing must not keep a process from stopping.
func TestStopWhileTheNameServerSaysNothing(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	connected := make(chan struct{})
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for n := 0; ; n++ {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if n == 0 {
				close(connected)
			}
		}
	})
	c := newConsumer(t, silent.Addr().String(), rocketmq.ConsumerConfig{Handle: (&inbox{}).collect})
	c.Start()
	<-connected
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, c.Stop(ctx))
	require.NoError(t, ctx.Err(), "it waited for the name server")
	require.Error(t, c.Ready())
	require.NoError(t, silent.Close())
	accepting.Wait()
}

// A broker that is away for long must not cost memory: every client that fails to start would leave goroutines behind.
// It runs alone: it looks at every goroutine of the process.
func TestWaitingForTheBrokerLeaksNothing(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var tries atomic.Int32
	var refusing sync.WaitGroup
	refusing.Go(func() {
		for {
			conn, err := nobody.Accept()
			if err != nil {
				return
			}
			tries.Add(1)
			conn.Close()
		}
	})
	clients := func() int {
		stacks := make([]byte, 8<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return strings.Count(string(stacks), "consumer.(*statsItemSet)")
	}
	before := clients() // of tests that have ended, if they are run again and again
	c := newConsumer(t, nobody.Addr().String(), rocketmq.ConsumerConfig{Handle: (&inbox{}).collect})
	c.Start()
	require.Eventually(t, func() bool { return tries.Load() >= 4 }, wait, tick)
	require.LessOrEqual(t, clients(), before, "clients were made for nothing")
	require.NoError(t, nobody.Close())
	refusing.Wait()
	stop(t, c)
}

// Twenty consumers of one group come and go under load. None panics, and what one leaves the next one gets.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	const stops = 20
	b := brokertest.Start(t)
	p := newProducer(t, b)
	group := "points-" + uuid.NewString()
	in := &inbox{}
	sending, enough := context.WithCancel(context.Background())
	defer enough()
	var sent atomic.Int64
	ids := make(chan string, 1<<20)
	var load sync.WaitGroup
	for range 2 {
		load.Go(func() {
			for sending.Err() == nil {
				res, err := p.SendSync(context.Background(), primitive.NewMessage(topic, []byte("x")).WithTag("t"))
				if err != nil {
					t.Error(err)
					return
				}
				ids <- res.MsgID
				sent.Add(1)
			}
		})
	}
	for range stops {
		before := in.distinct()
		c := newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: in.collect, Concurrency: 4})
		c.Start()
		require.Eventually(t, func() bool { return in.distinct() > before+20 }, wait, tick, "the next consumer does not go on")
		stop(t, c)
	}
	enough()
	load.Wait()
	close(ids)
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Group: group, Handle: in.collect}).Start()
	require.Eventually(t, func() bool { return int64(in.distinct()) == sent.Load() }, wait, tick, "a message was lost")
	for id := range ids {
		require.NotZero(t, in.times(id))
	}
	require.Greater(t, sent.Load(), int64(stops*20))
}
