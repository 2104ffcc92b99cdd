package txmsg_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/points"
	"github.com/halfbox/halfbox/txmsg"
)

// benchRounds is odd, so that the median is a round.
const benchRounds = 9

// BenchmarkAgainstBareLoop measures orders per second on MySQL and a RocketMQ cluster, three ways in turn: a bare loop
// that does half message, BEGIN, INSERT, COMMIT and END_TRANSACTION with the same client, driver and pool size;
// PublishInTx; and POST /api/v1/orders over HTTP. It reports the medians of 9 interleaved rounds and their ratios to the
// bare loop's, and the CPU time of this process for an order, which other work on the machine changes least.
// HALFBOX_BENCH_ROUND is the time of one measurement (1 s); run it with -benchtime 1x.
func BenchmarkAgainstBareLoop(b *testing.B) {
	each := time.Second
	if text := os.Getenv("HALFBOX_BENCH_ROUND"); text != "" {
		var err error
		each, err = time.ParseDuration(text)
		require.NoError(b, err, "HALFBOX_BENCH_ROUND")
	}
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("%d-callers", callers), func(b *testing.B) {
			for range b.N {
				ways := []way{bareLoop(b), publisher(b), api(b, callers)}
				for _, w := range ways {
					w.measure(b, callers, each/2) // routes, pools, tables
				}
				rates, cpu := make([][]float64, len(ways)), make([][]float64, len(ways))
				for round := range benchRounds {
					for i := range ways { // another one is first in each round
						k := (i + round) % len(ways)
						perSecond, perOrder := ways[k].measure(b, callers, each)
						rates[k], cpu[k] = append(rates[k], perSecond), append(cpu[k], perOrder)
					}
				}
				bare := median(rates[0])
				for i, w := range ways {
					b.ReportMetric(median(rates[i]), w.name+"-orders/s")
					b.ReportMetric(median(cpu[i]), w.name+"-cpu-µs/order")
					if i > 0 {
						b.ReportMetric(100*median(rates[i])/bare, w.name+"-%-of-bare")
					}
				}
			}
			b.ReportMetric(0, "ns/op") // the rounds' time says nothing
		})
	}
}

// way is one of the ways to make an order.
type way struct {
	name   string
	create func() error
}

// measure makes orders from so many callers at once. It returns how many per second, and the CPU time of this process for
// each in microseconds.
func (w way) measure(b *testing.B, callers int, d time.Duration) (perSecond, perOrder float64) {
	b.Helper()
	var made atomic.Int64
	var running sync.WaitGroup
	used, began := cpuTime(b), time.Now()
	for range callers {
		running.Go(func() {
			for time.Since(began) < d {
				if err := w.create(); err != nil {
					b.Errorf("%s: %v", w.name, err)
					return
				}
				made.Add(1)
			}
		})
	}
	running.Wait()
	orders := float64(made.Load())
	return orders / time.Since(began).Seconds(), float64((cpuTime(b) - used).Microseconds()) / orders
}

// cpuTime is that of this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// bare is the client's listener with nothing but an INSERT in it.
type bare struct {
	db      *sql.DB
	running sync.Map // msg_id -> *error
}

// The bare loop writes the columns that package order writes, and ids of the same kind: keys that come in order cost
// InnoDB something else than keys at random.
const (
	bareInsert = "INSERT INTO t_order (order_no, user_id, amount_cents, status, version, msg_id, delivery," +
		" idempotency_key, request_hash, points_state, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	bareHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

func (l *bare) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	result, _ := l.running.Load(m.TransactionId)
	if *result.(*error) = l.insert(m); *result.(*error) != nil {
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

func (l *bare) insert(m *primitive.Message) error {
	ctx := context.Background()
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	now := time.Now().UTC()
	_, err = tx.ExecContext(ctx, bareInsert, m.GetKeys(), 7, 9990, "CREATED", 1, m.TransactionId, "txmsg", nil, bareHash, "PENDING", now, now)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (l *bare) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.CommitMessageState // only what was committed stays open
}

func bareLoop(b *testing.B) way {
	nameServers := enginetest.RocketMQ(b)
	topic := enginetest.Topic(b, nameServers)
	l := &bare{db: mysqlAt(b)(b, database.Options{}).SQL()}
	opts, err := rocketmq.ProducerConfig{NameServers: nameServers, Group: enginetest.Group(b), SendTimeout: 5 * time.Second}.Options("bare")
	require.NoError(b, err)
	p, err := client.NewTransactionProducer(l, opts...)
	require.NoError(b, err)
	require.NoError(b, p.Start())
	b.Cleanup(func() { require.NoError(b, p.Shutdown()) })
	body, err := halfbox.Encode(orderEvent(b), uuid.NewString())
	require.NoError(b, err)
	return way{"bare", func() error {
		at, err := halfbox.NewAttempt(halfbox.DeliveryTxmsg)
		if err != nil {
			return err
		}
		id := at.MsgID
		m := primitive.NewMessage(topic, body)
		m.WithProperty(halfbox.HeaderContentType, halfbox.ContentType)
		m.WithProperty(primitive.PropertyUniqueClientMessageIdKeyIndex, id)
		m.WithKeys([]string{id})
		m.WithTag(order.EventCreated)
		var local error
		l.running.Store(id, &local)
		defer l.running.Delete(id)
		res, err := p.SendMessageInTransaction(context.Background(), m)
		if err == nil && res.State != primitive.CommitMessageState {
			err = fmt.Errorf("not committed: %w", local)
		}
		return err
	}}
}

// benchService is an order service as it runs in production.
func benchService(b *testing.B) *order.Service {
	nameServers := enginetest.RocketMQ(b)
	open := mysqlAt(b)
	checker, err := checkback.New(checkback.Config{
		Resolvers: map[string]checkback.Resolver{order.EventCreated: order.NewCreatedResolver(open(b, database.Options{LockWait: time.Second, MaxOpen: 2}))},
	})
	require.NoError(b, err)
	db := open(b, database.Options{})
	p := startProducer(b, txmsg.Config{
		DB: db, NameServers: nameServers, Group: enginetest.Group(b), Topic: enginetest.Topic(b, nameServers), Checker: checker, HalfTimeout: 5 * time.Second,
	})
	require.Eventually(b, func() bool { return p.Ready() == nil }, 2*wait, tick)
	return (&rig{db: db, producer: p}).service(b)
}

func publisher(b *testing.B) way {
	s := benchService(b)
	return way{"PublishInTx", func() error {
		_, _, err := s.Create(context.Background(), request)
		return err
	}}
}

func api(b *testing.B, callers int) way {
	pointsDB, err := database.OpenSQLite(filepath.Join(b.TempDir(), "points.db"), database.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, pointsDB.Close()) })
	require.NoError(b, pointsDB.Migrate(b.Context(), points.Migrations()))
	handler, err := httpapi.Public(httpapi.PublicConfig{Orders: benchService(b), Points: points.NewLedger(pointsDB)})
	require.NoError(b, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	caller := newCaller(b, listener.Addr().String(), callers)
	b.Cleanup(func() {
		caller.close()
		require.NoError(b, server.Close())
		require.ErrorIs(b, <-served, http.ErrServerClosed)
	})
	return way{"api", caller.create}
}

// caller posts orders over kept connections. It does as little as can be done: net/http's client costs as much CPU time
// as its server, on the machine that is measured.
type caller struct {
	request []byte
	conns   chan callerConn
}

type callerConn struct {
	net.Conn
	answers *bufio.Reader
}

func newCaller(b *testing.B, addr string, callers int) *caller {
	const body = `{"user_id":7,"amount_cents":9990}`
	c := &caller{
		request: fmt.Appendf(nil, "POST /api/v1/orders HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", addr, len(body), body),
		conns:   make(chan callerConn, callers),
	}
	for range callers {
		conn, err := net.Dial("tcp", addr)
		require.NoError(b, err)
		c.conns <- callerConn{conn, bufio.NewReader(conn)}
	}
	return c
}

func (c *caller) create() error {
	conn := <-c.conns
	defer func() { c.conns <- conn }()
	if _, err := conn.Write(c.request); err != nil {
		return err
	}
	return conn.readCreated()
}

// readCreated reads an answer, which must be 201 with a length.
func (c callerConn) readCreated() error {
	first, err := c.answers.ReadString('\n')
	if err != nil {
		return err
	}
	length := 0
	for {
		line, err := c.answers.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if value, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if _, err := c.answers.Discard(length); err != nil {
		return err
	}
	if !strings.HasPrefix(first, "HTTP/1.1 201 ") || length == 0 {
		return fmt.Errorf("answered %q with %d bytes", first, length)
	}
	return nil
}

func (c *caller) close() {
	for range cap(c.conns) {
		(<-c.conns).Close()
	}
}
