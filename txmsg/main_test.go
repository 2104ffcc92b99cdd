package txmsg_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/conformance"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/rocketmq/rocketmqtest"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/txmsg"
)

func TestMain(m *testing.M) { rocketmqtest.Main(m) }

const (
	topic = "ORDER_EVENT_TOPIC"
	wait  = time.Minute // a producer that lost its connection is known again with its next heartbeat, up to 30 s later
	tick  = 5 * time.Millisecond
)

// openDB opens a new order database.
func openDB(t testing.TB, path string, o database.Options) *database.DB {
	t.Helper()
	db, err := database.OpenSQLite(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.Migrate(context.Background(), order.Migrations()))
	return db
}

// rig is a producer on a broker and a database of its own.
type rig struct {
	broker   *broker.Broker
	db       *database.DB
	producer *txmsg.Producer
	cfg      txmsg.Config
	*recorder
}

type rigOptions struct {
	hooks    database.Hooks
	broker   func(*broker.Config)
	producer func(*txmsg.Config)
	fallback bool // to an outbox.Writer on the same database
	// resolver answers for the conformance suite's facts; factResolver when nil.
	resolver func(t testing.TB, db *database.DB) checkback.Resolver
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	if o.broker == nil {
		o.broker = func(*broker.Config) {}
	}
	if o.resolver == nil {
		o.resolver = newFactResolver
	}
	path := filepath.Join(t.TempDir(), "order.db")
	r := &rig{broker: brokertest.Start(t, manyChecks, o.broker), db: openDB(t, path, database.Options{Hooks: o.hooks})}
	checks := openDB(t, path, database.Options{LockWait: 200 * time.Millisecond})
	checker, err := checkback.New(checkback.Config{
		Resolvers: map[string]checkback.Resolver{order.EventCreated: order.NewCreatedResolver(checks), "conformance.fact": o.resolver(t, checks)},
		Grace:     300 * time.Millisecond,
		Logger:    zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel)),
	})
	require.NoError(t, err)
	r.recorder = &recorder{inner: checker}
	r.cfg = txmsg.Config{
		DB: r.db, NameServers: []string{r.broker.Addr()}, Group: "tx-" + uuid.NewString(), Topic: topic, Checker: r.recorder,
		HalfTimeout: wait, LocalTimeout: wait, // generous, so that a slow machine decides no test
		Logger: zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel)),
	}
	if o.fallback {
		require.NoError(t, r.db.Migrate(context.Background(), outbox.Migrations()))
		r.cfg.Fallback, err = outbox.NewWriter(outbox.WriterConfig{DB: r.db, Sink: "main", Destination: topic})
		require.NoError(t, err)
	}
	if o.producer != nil {
		o.producer(&r.cfg)
	}
	r.producer = startProducer(t, r.cfg)
	return r
}

// manyChecks keeps the broker from giving a half message up before whoever can be asked has had its turn.
func manyChecks(c *broker.Config) { c.CheckMax = 1000 }

func startProducer(t testing.TB, cfg txmsg.Config) *txmsg.Producer {
	t.Helper()
	p, err := txmsg.New(cfg)
	require.NoError(t, err)
	if r, ok := cfg.Checker.(*recorder); ok {
		r.watch(p)
	}
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		require.NoError(t, p.Stop(ctx))
	})
	return p
}

func (r *rig) awaitReady(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return r.producer.Ready() == nil }, 2*wait, tick)
}

// delivered returns the bodies stored in the topic under a message id.
func (r *rig) delivered(msgID string) ([][]byte, error) {
	found, err := r.broker.FindMessages(topic, msgID)
	var bodies [][]byte
	for _, m := range found {
		bodies = append(bodies, m.Body)
	}
	return bodies, err
}

// factResolver answers check-backs for the conformance suite's table.
type factResolver struct{ db *database.DB }

func newFactResolver(_ testing.TB, db *database.DB) checkback.Resolver { return factResolver{db} }

func (r factResolver) Find(ctx context.Context, h checkback.Half) (checkback.Finding, error) {
	var found struct{ Fact string }
	err := r.db.Read.WithContext(ctx).Table("conformance").Where("msg_id = ?", h.MsgID).Take(&found).Error
	switch {
	case errors.Is(err, gorm.ErrRecordNotFound):
		return checkback.Absent, nil
	case err != nil:
		return checkback.Absent, err
	case found.Fact == "~"+h.MsgID[:8]:
		return checkback.Void, nil
	}
	return checkback.Committed, nil
}

func (r factResolver) Bury(ctx context.Context, h checkback.Half) error {
	err := r.db.Write.WithContext(ctx).Exec("INSERT INTO conformance (fact, msg_id, delivery) VALUES (?, ?, ?)", "~"+h.MsgID[:8], h.MsgID, "txmsg").Error
	if database.IsDuplicate(err) {
		return checkback.ErrTaken
	}
	return err
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, hooks database.Hooks) conformance.Strategy {
		return newRig(t, rigOptions{hooks: hooks}).strategy()
	})
}

// strategy is the rig as the conformance suite sees it.
func (r *rig) strategy() conformance.Strategy {
	return conformance.Strategy{
		Publisher: r.producer, DB: r.db, Delivered: r.delivered, Delivery: halfbox.DeliveryTxmsg, Inserts: 1,
		Settle: 1500 * time.Millisecond,
	}
}
