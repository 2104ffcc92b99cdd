package checkback_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

// world is an order database with its outbox, and a broker that gives half messages up soon.
type world struct {
	engine
	nameServer string
	topic      string
	group      string
	sent       *atomic.Int64
}

// onWorlds runs a test on SQLite and MySQL with the in-process broker, and on MySQL with RocketMQ.
func onWorlds(t *testing.T, test func(t *testing.T, w world)) {
	for name, e := range map[string]func(testing.TB) engine{"sqlite": newSQLite, "mysql": newMySQL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := e(t)
			test(t, newWorld(t, e, quickBroker(t).Addr()))
		})
	}
}

func quickBroker(t testing.TB, change ...func(*broker.Config)) *broker.Broker {
	t.Helper()
	return brokertest.Start(t, append([]func(*broker.Config){func(c *broker.Config) {
		c.TransactionTimeout, c.CheckInterval, c.CheckMax = 20*time.Millisecond, 20*time.Millisecond, 2
	}}, change...)...)
}

func newWorld(t testing.TB, e engine, nameServer string) world {
	t.Helper()
	w := world{engine: e, nameServer: nameServer, group: enginetest.Group(t), sent: &atomic.Int64{}}
	db := e.open(t, database.Options{})
	for _, line := range []database.Line{outbox.Migrations(), checkback.Migrations()} {
		require.NoError(t, db.Migrate(t.Context(), line))
	}
	w.topic = enginetest.Topic(t, []string{nameServer})
	return w
}

// half sends a half message of an event, as the producer does before its local transaction.
func (w world) half(t testing.TB, ev halfbox.Event, at halfbox.Attempt, change ...func(*enginetest.Half)) {
	t.Helper()
	body, err := halfbox.Encode(ev, at.MsgID)
	require.NoError(t, err)
	h := enginetest.Half{Topic: w.topic, Group: w.group, MsgID: at.MsgID, Tags: ev.Type, Keys: ev.Subject, Body: body}
	for _, c := range change {
		c(&h)
	}
	enginetest.SendHalf(t, w.nameServer, h)
	if h.Group == w.group {
		w.sent.Add(1)
	}
}

// discarded waits until the broker has given every half message up, and returns their ids in its order.
func (w world) discarded(t testing.TB) (ids []string) {
	t.Helper()
	require.Eventually(t, func() bool {
		ids = enginetest.Discarded(t, w.nameServer, w.group)
		return len(ids) == int(w.sent.Load())
	}, discardedIn, 10*tick, "the broker does not give the half messages up")
	return ids
}

// halfFirst publishes an order as txmsg does, with an attempt that the test knows, and never ends the half message.
type halfFirst struct {
	attempts
	t testing.TB
	w world
}

func (p halfFirst) PublishInTx(ctx context.Context, ev halfbox.Event, local func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error) {
	p.w.half(p.t, ev, p.at)
	return p.attempts.PublishInTx(ctx, ev, local)
}

// halfLast is halfFirst for a rescuer that is at work already: it would void a local transaction that is slower than the
// broker's checks.
type halfLast struct{ halfFirst }

func (p halfLast) PublishInTx(ctx context.Context, ev halfbox.Event, local func(*gorm.DB, halfbox.Attempt) error) (halfbox.Receipt, error) {
	receipt, err := p.attempts.PublishInTx(ctx, ev, local)
	p.w.half(p.t, ev, p.at)
	return receipt, err
}

// order makes an order by a half message that is never ended; inside is called before COMMIT.
func (w world) order(t testing.TB, db *database.DB, inside func()) (order.Order, error) {
	t.Helper()
	return publish(t, db, halfFirst{attempts{db: db, at: newAttempt(t), inside: inside}, t, w})
}

// committed makes an order whose half message is never ended, beside a rescuer.
func (w world) committed(t testing.TB, db *database.DB) order.Order {
	t.Helper()
	o, err := publish(t, db, halfLast{halfFirst{attempts{db: db, at: newAttempt(t)}, t, w}})
	require.NoError(t, err)
	return o
}

func publish(t testing.TB, db *database.DB, p order.Publisher) (order.Order, error) {
	t.Helper()
	s, err := order.NewService(order.Config{DB: db, Default: halfbox.DeliveryTxmsg, Publishers: map[halfbox.Delivery]order.Publisher{halfbox.DeliveryTxmsg: p}})
	require.NoError(t, err)
	o, _, err := s.Create(context.Background(), order.CreateRequest{UserID: 7, AmountCents: 9990})
	return o, err
}

// absent sends a half message whose local transaction never was.
func (w world) absent(t testing.TB, change ...func(*enginetest.Half)) halfbox.Attempt {
	t.Helper()
	at := newAttempt(t)
	w.half(t, halfbox.Event{
		Type: order.EventCreated, Source: order.EventSource, Subject: strings.ToUpper(at.MsgID), DataSchema: order.EventSchema,
		Time: time.Now(), AggregateVersion: 1, PartitionKey: "x", Data: []byte("{}"),
	}, at, change...)
	return at
}

// recorder lets the rescue write event records.
type recorder struct{ *outbox.Writer }

func (r recorder) WriteTx(tx *gorm.DB, ev halfbox.Event, at halfbox.Attempt) error {
	err := r.Writer.WriteTx(tx, ev, at)
	switch {
	case errors.Is(err, outbox.ErrDuplicateMessage):
		return fmt.Errorf("%w: %w", checkback.ErrRecorded, err)
	case errors.Is(err, outbox.ErrDuplicateFact), errors.Is(err, outbox.ErrInvalidEvent), errors.Is(err, outbox.ErrTooLarge):
		return fmt.Errorf("%w: %w", checkback.ErrUnrecordable, err)
	}
	return err
}

// rescuer is one process's rescue.
type rescuer struct {
	*checkback.Rescuer
	reg  *prometheus.Registry
	stop func()
}

// rescue starts a rescuer on handles of its own.
func (w world) rescue(t testing.TB, o database.Options, change ...func(*checkback.RescueConfig)) rescuer {
	t.Helper()
	db := w.open(t, o)
	r := rescuer{reg: prometheus.NewRegistry()}
	writer, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "rocketmq", Destination: "not-this"})
	require.NoError(t, err)
	cfg := checkback.RescueConfig{
		DB: db, Records: recorder{writer}, NameServers: []string{"http://" + w.nameServer}, Group: w.group,
		Checker: newChecker(t, w.open(t, database.Options{LockWait: 100 * time.Millisecond})).Checker,
		Poll:    rescuePoll, Lease: rescueLease, Registerer: r.reg,
	}
	for _, c := range change {
		c(&cfg)
	}
	r.Rescuer, err = checkback.NewRescuer(cfg)
	require.NoError(t, err)
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			require.NoError(t, r.Stop(ctx))
		})
	}
	t.Cleanup(r.stop)
	require.NoError(t, r.Start())
	return r
}

// value sums a metric of the rescuer over its labels, or reads one of them.
func (r rescuer) value(t testing.TB, name string, label ...string) float64 {
	t.Helper()
	families, err := r.reg.Gather()
	require.NoError(t, err)
	sum, found := 0.0, false
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(label) == 0 || m.GetLabel()[0].GetValue() == label[0] {
				sum, found = sum+m.GetCounter().GetValue()+m.GetGauge().GetValue(), true
			}
		}
	}
	require.True(t, found, "no metric %s %v", name, label)
	return sum
}

func (r rescuer) outcome(t testing.TB, outcome string) int {
	t.Helper()
	return int(r.value(t, "halfbox_rescue_halves_total", outcome))
}

// records returns msg_id -> payload of the event records.
func records(t testing.TB, db *database.DB) map[string][]byte {
	t.Helper()
	var found []struct {
		MsgID       string
		Payload     []byte
		Destination string
		Delivery    string
	}
	require.NoError(t, db.Read.Raw("SELECT msg_id, payload, destination, delivery FROM t_event_record").Scan(&found).Error)
	by := map[string][]byte{}
	for _, f := range found {
		require.NotContains(t, by, f.MsgID)
		by[f.MsgID] = f.Payload
	}
	return by
}

func (w world) position(t testing.TB, db *database.DB) string {
	t.Helper()
	var at []string
	require.NoError(t, db.Read.Raw("SELECT position FROM t_progress WHERE name LIKE ?", "rescue/"+w.group+"/%").Scan(&at).Error)
	if len(at) == 0 {
		return ""
	}
	require.Len(t, at, 1)
	return at[0]
}

func eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, wait, tick, what)
}
