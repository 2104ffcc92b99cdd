package txmsg_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/txmsg"
)

// world is a database and a broker for one test.
type world struct {
	nameServers []string
	topic       string
	broker      *broker.Broker // nil for a RocketMQ cluster
	grace       time.Duration  // at least the broker's transactionTimeOut
	open        func(t testing.TB, o database.Options) *database.DB
	delivered   func(msgID string) ([][]byte, error)
}

// onWorlds runs the test on SQLite and MySQL with the in-process broker, and on MySQL with a RocketMQ cluster.
func onWorlds(t *testing.T, test func(t *testing.T, w world), change ...func(*broker.Config)) {
	t.Run("sqlite, in-process broker", func(t *testing.T) { t.Parallel(); test(t, embedded(t, sqliteAt(t), change...)) })
	t.Run("mysql, in-process broker", func(t *testing.T) { t.Parallel(); test(t, embedded(t, mysqlAt(t), change...)) })
	if len(change) == 0 { // else the test needs what only the in-process broker can be told
		t.Run("mysql, rocketmq", func(t *testing.T) { t.Parallel(); test(t, cluster(t)) })
	}
}

type opener = func(t testing.TB, o database.Options) *database.DB

func sqliteAt(t testing.TB) opener {
	path := filepath.Join(t.TempDir(), "order.db")
	return func(t testing.TB, o database.Options) *database.DB { return openDB(t, path, o) }
}

func mysqlAt(t testing.TB) opener {
	dsn := enginetest.MySQL(t)
	require.NoError(t, openMySQL(t, dsn, database.Options{}).Migrate(t.Context(), order.Migrations()))
	return func(t testing.TB, o database.Options) *database.DB { return openMySQL(t, dsn, o) }
}

func embedded(t testing.TB, open opener, change ...func(*broker.Config)) world {
	b := brokertest.Start(t, append([]func(*broker.Config){manyChecks}, change...)...)
	return world{
		nameServers: []string{b.Addr()}, topic: topic, broker: b, grace: 300 * time.Millisecond, open: open,
		delivered: (&rig{broker: b}).delivered,
	}
}

func cluster(t testing.TB) world {
	nameServers := enginetest.RocketMQ(t)
	name := enginetest.Topic(t, nameServers)
	return world{
		nameServers: nameServers, topic: name, grace: 2500 * time.Millisecond, open: mysqlAt(t),
		delivered: rocketmqtest.Collect(t, nameServers, name),
	}
}

// node is one instance of the service.
type node struct {
	rig
	world
}

type nodeOptions struct {
	hooks    database.Hooks
	producer func(*txmsg.Config)
	checker  func(h checkback.Half) (answer checkback.Answer, given bool) // in place of the true answer
	fallback bool
}

// node starts an instance. All of a world's instances share its group when the test sets one.
func (w world) node(t testing.TB, o nodeOptions) *node {
	t.Helper()
	log := zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))
	checker, err := checkback.New(checkback.Config{
		Resolvers: map[string]checkback.Resolver{order.EventCreated: order.NewCreatedResolver(w.open(t, database.Options{LockWait: time.Second}))},
		Grace:     w.grace, Logger: log,
	})
	require.NoError(t, err)
	n := &node{world: w, rig: rig{recorder: &recorder{inner: checker, instead: o.checker}}}
	n.db = w.open(t, database.Options{Hooks: o.hooks})
	n.cfg = txmsg.Config{
		DB: n.db, NameServers: w.nameServers, Group: "tx-" + uuid.NewString(), Topic: w.topic, Checker: n.recorder,
		HalfTimeout: wait, LocalTimeout: 2 * wait, Logger: log,
	}
	if o.fallback {
		require.NoError(t, n.db.Migrate(context.Background(), outbox.Migrations()))
		n.cfg.Fallback, err = outbox.NewWriter(outbox.WriterConfig{DB: n.db, Sink: "main", Destination: w.topic})
		require.NoError(t, err)
	}
	if o.producer != nil {
		o.producer(&n.cfg)
	}
	n.producer = startProducer(t, n.cfg)
	return n
}

// requireDelivered waits for a message, and checks how often it came. RocketMQ delivers once more, some time later, for a
// COMMIT that answers a check and has crossed another.
func (n *node) requireDelivered(t testing.TB, msgID string, times int) {
	t.Helper()
	count := func() int {
		bodies, err := n.world.delivered(msgID)
		require.NoError(t, err)
		return len(bodies)
	}
	require.Eventually(t, func() bool { return count() >= times }, 2*wait, tick, "message %s was not delivered", msgID)
	most := times
	if times > 0 && n.broker() == nil {
		most = max(times, 1+n.commits(msgID))
	}
	require.LessOrEqual(t, count(), most)
}

// requireOne checks the end of every race: one order, delivered once under the id of its row, and of the others none.
func (n *node) requireOne(t testing.TB, o order.Order) {
	t.Helper()
	orders, tombstones := n.rows(t)
	require.Len(t, orders, 1)
	require.Equal(t, o.MsgID, orders[0].MsgID)
	n.requireDelivered(t, o.MsgID, 1)
	for _, voided := range tombstones {
		n.requireDelivered(t, voided.MsgID, 0)
	}
}

// recorder is a Checker that keeps its answers. Attempts that are under way are spared, with UNKNOWN that is not kept: a
// local transaction may take as long as it likes, unless the test is about just that.
type recorder struct {
	inner   txmsg.Checker
	instead func(h checkback.Half) (checkback.Answer, bool)
	exposed atomic.Bool // nothing is spared

	mu        sync.Mutex
	producers []*txmsg.Producer
	halves    []checkback.Half
	given     []checkback.Answer
}

// watch tells the recorder of a producer whose attempts it has to spare.
func (r *recorder) watch(p *txmsg.Producer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.producers = append(r.producers, p)
}

func (r *recorder) spares(msgID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.exposed.Load() && slices.ContainsFunc(r.producers, func(p *txmsg.Producer) bool { return p.UnderWay(msgID) })
}

// expose lets checks meet what is under way until the answers are enough. It is called from within a local transaction
// or a hook.
func (r *recorder) expose(t testing.TB, enough func(all []checkback.Answer) bool) {
	t.Helper()
	r.exposed.Store(true)
	defer r.exposed.Store(false)
	r.until(t, enough)
}

func (r *recorder) Check(ctx context.Context, h checkback.Half) checkback.Answer {
	if r.spares(h.MsgID) {
		return checkback.Unknown
	}
	a, given := checkback.Unknown, false
	if r.instead != nil {
		a, given = r.instead(h)
	}
	if !given {
		a = r.inner.Check(ctx, h)
	}
	r.keep(h, a)
	return a
}

func (r *recorder) keep(h checkback.Half, a checkback.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.halves = append(r.halves, h)
	r.given = append(r.given, a)
}

// answers are those for one half message, or for all of them.
func (r *recorder) answers(msgID string) (all []checkback.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, h := range r.halves {
		if msgID == "" || h.MsgID == msgID {
			all = append(all, r.given[i])
		}
	}
	return all
}

// commits counts the checks of a half message that were answered COMMIT.
func (r *recorder) commits(msgID string) int {
	return len(slices.DeleteFunc(r.answers(msgID), func(a checkback.Answer) bool { return a != checkback.Commit }))
}

// asked are the ids of the half messages that were asked about, each once.
func (r *recorder) asked() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.halves {
		if !slices.Contains(ids, h.MsgID) {
			ids = append(ids, h.MsgID)
		}
	}
	return ids
}

// until waits for an answer where a test must not end.
func (r *recorder) until(t testing.TB, enough func(all []checkback.Answer) bool) {
	t.Helper()
	deadline := time.Now().Add(2 * wait)
	for !enough(r.answers("")) {
		if time.Now().After(deadline) {
			t.Errorf("no such answer in time, only %v", r.answers(""))
			return
		}
		<-time.After(tick)
	}
}

func contains(a checkback.Answer) func([]checkback.Answer) bool {
	return func(all []checkback.Answer) bool { return slices.Contains(all, a) }
}

func atLeast(n int) func([]checkback.Answer) bool {
	return func(all []checkback.Answer) bool { return len(all) >= n }
}

// onceBefore returns hooks that call f before the first statement that begins so.
func onceBefore(prefix string, f func()) database.Hooks {
	var once sync.Once
	return database.Hooks{Before: func(_ database.Op, query string) error {
		if strings.HasPrefix(query, prefix) {
			once.Do(f)
		}
		return nil
	}}
}
