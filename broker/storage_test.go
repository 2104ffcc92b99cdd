package broker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
)

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	cfg := brokertest.Config(t)

	other := cfg
	other.Dir = b.Config().Dir
	_, err := broker.Open(other)
	require.ErrorIs(t, err, broker.ErrStorageInUse)
	require.ErrorContains(t, err, other.Dir)

	taken := cfg
	taken.Listen = b.Addr()
	_, err = broker.Open(taken)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, b.Addr())
	free, err := broker.Open(cfg)
	require.NoError(t, err, "the storage was released after the failed listen")
	require.NoError(t, free.Stop(context.Background()), "legal before Start")
	require.ErrorIs(t, free.Start(), broker.ErrStopped)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	under := cfg
	under.Dir = filepath.Join(file, "sub")
	_, err = broker.Open(under)
	require.ErrorContains(t, err, under.Dir)

	_, err = broker.Open(broker.Config{Listen: "nowhere", CheckMax: -1})
	for _, field := range []string{"Dir", "Listen", "CheckMax"} {
		require.ErrorContains(t, err, field)
	}
	require.ErrorIs(t, b.Start(), broker.ErrStarted)
}

func TestStopIsIdempotent(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	b := brokertest.Start(t, func(c *broker.Config) { c.Registerer = reg })
	send(t, newProducer(t, b), primitive.NewMessage("orders", []byte("x")))
	families, err := reg.Gather()
	require.NoError(t, err)
	require.NotEmpty(t, families)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { require.NoError(t, b.Stop(context.Background())) })
	}
	wg.Wait()
	families, err = reg.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "metrics leave with the broker")
	_, err = b.Messages("orders", 0, 0, 1)
	require.ErrorIs(t, err, broker.ErrStopped)
}

// A pull that waits is answered when the broker stops, not cut off.
func TestStopAnswersParkedPulls(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	w := park(t, b)
	require.NoError(t, b.Stop(context.Background()))
	r := w.read()
	require.Equal(t, 14, r.Code, "the client backs off")
}

// A copy of the folder taken in the middle of a write is what a crash leaves:
// it opens, and has everything that was acknowledged before.
func TestCrashCopyOpens(t *testing.T) {
	t.Parallel()
	var hold atomic.Bool
	held, release := make(chan struct{}), make(chan struct{})
	b := brokertest.Start(t, func(c *broker.Config) {
		c.TransactionTimeout = time.Hour
		c.Hooks.StorageFault = func(string) error {
			if hold.CompareAndSwap(true, false) {
				close(held)
				<-release
			}
			return nil
		}
	})
	p, half := newProducer(t, b), newTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState)})
	sendHalf(t, half, "orders", "half")
	for i := range 50 {
		send(t, p, primitive.NewMessage("orders", []byte(strconv.Itoa(i))))
	}
	send(t, p, primitive.NewMessage("orders", []byte("delayed")).WithDelayTimeLevel(6))
	hold.Store(true)
	sent := make(chan error, 1)
	go func() {
		_, err := p.SendSync(context.Background(), primitive.NewMessage("orders", []byte("in flight")))
		sent <- err
	}()
	<-held
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(b.Config().Dir, "broker.db"))
	close(release)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broker.db"), data, 0o600))
	copied := brokertest.Start(t, func(c *broker.Config) { c.Dir, c.TransactionTimeout = dir, time.Hour })
	require.Equal(t, 1, copied.OpenHalves())
	eventually(t, func() bool { return count(copied, "orders") == 51 }, "50 acknowledged and the delayed one")
	require.Len(t, messages(t, copied, "orders"), 51)
}

const crashDir = "HALFBOX_BROKER_CRASH_DIR"

// TestKilledProcess kills a process that serves and looks for everything it
// acknowledged.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(crashDir); dir != "" {
		b := brokertest.Start(t, func(c *broker.Config) { c.Dir = dir })
		_, err := os.Stdout.WriteString("ADDR " + b.Addr() + "\n")
		require.NoError(t, err)
		select {} // until killed
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
	cmd.Env = append(os.Environ(), crashDir+"="+dir, "TMPDIR="+t.TempDir()) // what it makes goes with us, it has no time to
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		addr, _ = strings.CutPrefix(lines.Text(), "ADDR ")
	}
	require.NotEmpty(t, addr)
	var mu sync.Mutex
	acked := map[string]bool{}
	var wg sync.WaitGroup
	for sender := range 4 {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		w := &wire{t: t, c: c, r: bufio.NewReader(c)}
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d", sender, i)
				ext := sendExt("orders")
				ext["properties"] = "UNIQ_KEY\x01" + id + "\x02"
				if !w.try(10, ext) {
					return
				}
				mu.Lock()
				acked[id] = true
				mu.Unlock()
			}
		})
	}
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(acked) > 200 }, "no traffic")
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	wg.Wait()
	b := brokertest.Start(t, func(c *broker.Config) { c.Dir = dir })
	for _, m := range messages(t, b, "orders") {
		delete(acked, m.UniqKey)
	}
	require.Empty(t, acked, "acknowledged but lost")
}

func TestWriteErrorsAreAnsweredAndSurvived(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Logger = zap.NewNop()
		c.Hooks.StorageFault = func(string) error {
			if broken.Load() {
				return errors.New("disk full")
			}
			return nil
		}
	})
	p, tx := newProducer(t, b), newRegisteredTxProducer(t, b, "pg", listener{execute: func(*primitive.Message) primitive.LocalTransactionState {
		broken.Store(true)
		return primitive.CommitMessageState
	}})
	send(t, p, primitive.NewMessage("orders", []byte("1")))
	sendHalf(t, tx, "orders", "2") // its commit fails
	_, err := p.SendSync(within(t), primitive.NewMessage("orders", []byte("x")))
	require.ErrorContains(t, err, "CODE: 1")
	broken.Store(false)
	send(t, p, primitive.NewMessage("orders", []byte("3")))
	eventually(t, func() bool { return count(b, "orders") == 3 }, "the check repairs the commit")
}

func TestRetention(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Retention = time.Second
		c.DefaultQueues = 1
		c.TransactionTimeout = 1000 * time.Hour
		c.Hooks.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	p := newProducer(t, b)
	sendHalf(t, newTxProducer(t, b, "pg", listener{execute: always(primitive.UnkonwnState)}), "orders", "half")
	for i := range 600 {
		_, err := p.SendSync(within(t), primitive.NewMessage("orders", []byte(strconv.Itoa(i))))
		require.NoError(t, err)
	}
	ahead.Store(int64(time.Hour))
	eventually(t, func() bool { return count(b, "orders") == 0 }, "not deleted")
	require.Equal(t, 1, b.OpenHalves(), "an open half is not deleted by age")
	b = brokertest.Restart(t, b, func(c *broker.Config) { c.Retention = time.Hour })
	ts, _ := b.Topic("orders")
	require.Equal(t, []broker.QueueStats{{Min: 600, Max: 600}}, ts.Queues, "offsets do not start over")
	w := dial(t, b)
	r := w.call(11, map[string]string{"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "10", "maxMsgNums": "32"}, nil)
	require.Equal(t, 21, r.Code)
	require.Equal(t, "600", r.Ext["nextBeginOffset"])
	require.Equal(t, "600", w.call(10, sendExt("orders"), []byte("next")).Ext["queueOffset"])
}
