package txmsg_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/txmsg"
)

// soakFor is how long a soak runs: a moment in every test run, HALFBOX_SOAK in `make soak`.
func soakFor(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("HALFBOX_SOAK")
	if text == "" {
		return 4 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "HALFBOX_SOAK")
	return d
}

// The client's goroutines that outlive it, see rocketmqtest: one for each producer for ever, the others for a while.
var outliving = []string{
	"producer.(*transactionProducer).checkTransactionState", "primitive.WithRecover",
	"internal/remote.(*remotingClient).receiveResponse", "internal.(*rmqClient).RebalanceImmediately",
	"consumer.(*pushConsumer).pullMessage", "go-cache.(*janitor).Run",
	"testing.(*T).Parallel(", // another test, which waits for its turn
}

// goroutines counts those that run code of the stack prefix, but for the client's known ones; the rest of the process
// may have other tests in it.
func goroutines(t testing.TB, of ...string) (ours int, stacks string) {
	t.Helper()
	var text strings.Builder
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&text, 2))
	var kept []string
next:
	for stack := range strings.SplitSeq(text.String(), "\n\n") {
		if strings.Contains(stack, "testing.tRunner(") { // a test that waits for its turn
			continue
		}
		for _, known := range outliving {
			if strings.Contains(stack, known) {
				continue next
			}
		}
		for _, name := range of {
			if strings.Contains(stack, name) {
				kept = append(kept, stack)
				break
			}
		}
	}
	return len(kept), strings.Join(kept, "\n\n")
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // what has finalizers goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// soak calls round for the time of a soak, at least 20 times. After a first fifth, which fills caches and pools, neither
// goroutines nor heap may grow with the number of rounds: at most perRound bytes each.
func soak(t *testing.T, perRound uint64, stackOf string, round func(n int)) {
	t.Helper()
	began, total := time.Now(), soakFor(t)
	rounds := 0
	until := func(d time.Duration, least int) {
		for n := 0; n < least || time.Since(began) < d; n++ {
			round(rounds)
			rounds++
		}
	}
	until(total/5, 5)
	before, first := heap(), rounds
	until(total, 20)
	var left int
	var stacks string
	for deadline := time.Now().Add(wait); ; <-time.After(20 * tick) {
		if left, stacks = goroutines(t, stackOf); left == 0 {
			break
		}
		require.True(t, time.Now().Before(deadline), "%d goroutines stay:\n%.4000s", left, stacks)
	}
	after, n := heap(), uint64(rounds-first)
	t.Logf("%d rounds; heap %d KiB after the first %d, %d KiB at the end", rounds, before>>10, first, after>>10)
	require.LessOrEqual(t, after, before+n*perRound+4<<20, "heap grows with the rounds")
}

// A process may start and stop producers and consumers as often as it likes: what the client leaves behind for each is
// known and small, and nothing of ours stays.
func TestSoakStartAndStop(t *testing.T) {
	b := brokertest.Start(t, func(c *broker.Config) { c.Logger = zap.NewNop() })
	w := embedded(t, sqliteAt(t))
	n := w.node(t, nodeOptions{})
	cfg := n.cfg
	cfg.NameServers, cfg.Logger, cfg.Registerer = []string{b.Addr()}, nil, nil
	// A stopped client keeps its timers for up to 30 s, and one goroutine for ever. It never closes its connection to the
	// name server (nameSrvClient in its internal/namesrv.go), so that stays until the other end finds it idle: after 3
	// minutes in this broker, which is in the heap too, with 32 KiB for each.
	const perClient = 192 << 10
	soak(t, perClient, "halfbox/txmsg.", func(n int) {
		cfg.Group = "tx-" + uuid.NewString()
		p, err := txmsg.New(cfg)
		require.NoError(t, err)
		require.NoError(t, p.Start())
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		var callers sync.WaitGroup
		published := make(chan struct{}, 1)
		for range 4 {
			callers.Go(func() {
				for {
					_, err := p.PublishInTx(ctx, orderEvent(t), func(*gorm.DB, halfbox.Attempt) error { return nil })
					if err != nil {
						if !errors.Is(err, txmsg.ErrStopped) {
							t.Errorf("in the middle of a stop: %v", err)
						}
						return
					}
					select {
					case published <- struct{}{}:
					default:
					}
				}
			})
		}
		if n%4 != 0 { // else it is stopped while it is connecting
			select {
			case <-published:
			case <-ctx.Done():
				t.Error("nothing was published")
			}
		}
		if !raceDetector {
			startAndStopConsumer(ctx, t, cfg.NameServers)
		}
		require.NoError(t, p.Stop(ctx))
		callers.Wait()
		require.Zero(t, p.Attempts())
	})
}

func startAndStopConsumer(ctx context.Context, t *testing.T, nameServers []string) {
	t.Helper()
	received := make(chan struct{}, 1)
	c, err := rocketmq.NewConsumer(rocketmq.ConsumerConfig{
		NameServers: nameServers, Topic: topic, Group: "soak-" + uuid.NewString(),
		Handle: func(context.Context, rocketmq.Message) error {
			select {
			case received <- struct{}{}:
			default:
			}
			return nil
		},
	})
	require.NoError(t, err)
	c.Start()
	select {
	case <-received:
	case <-ctx.Done():
		t.Error("the consumer received nothing")
	}
	require.NoError(t, c.Stop(ctx))
}

// A broker that answers too late, or not at all, for as long as it likes: callers, attempts and goroutines do not pile up.
func TestSoakTimeouts(t *testing.T) {
	var mode atomic.Int32
	w := embedded(t, sqliteAt(t), func(c *broker.Config) {
		c.Logger = zap.NewNop()
		c.TransactionTimeout = time.Hour // the late halves are not this test's
		c.Hooks.OnResponse = func(r broker.Request, _ int) broker.Action {
			if !r.Half {
				return broker.Action{}
			}
			switch mode.Add(1) % 3 {
			case 0:
				return broker.Action{Drop: true}
			case 1:
				return broker.Action{Delay: 60 * time.Millisecond}
			}
			return broker.Action{}
		}
	})
	n := w.node(t, nodeOptions{producer: func(c *txmsg.Config) {
		c.HalfTimeout = 30 * time.Millisecond
		c.Breaker.Failures = 1 << 30 // every one is tried
		c.Logger = zap.NewNop()
	}})
	n.awaitReady(t)
	var stored, late atomic.Int64
	soak(t, 64<<10, "halfbox/txmsg.(*Producer).", func(int) {
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				_, err := n.producer.PublishInTx(t.Context(), orderEvent(t), func(*gorm.DB, halfbox.Attempt) error { return nil })
				switch {
				case err == nil:
					stored.Add(1)
				case errors.Is(err, halfbox.ErrUnavailable):
					late.Add(1)
				default:
					t.Errorf("want committed or unavailable, got %v", err)
				}
			})
		}
		callers.Wait()
	})
	require.Zero(t, n.producer.Attempts())
	require.NotZero(t, late.Load())
	t.Logf("%d stored, %d given up", stored.Load(), late.Load())
}
