package txmsg_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/txmsg"
)

func TestReadyMeansKnownToTheBroker(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.awaitReady(t)
	require.True(t, r.broker.HasProducer(r.cfg.Group))
	require.Zero(t, r.broker.OpenHalves(), "warming up stores nothing")
	require.Empty(t, r.messages(t))
}

// A process that died between its commit and END_TRANSACTION is answered for by its successor, which has sent
// nothing yet.
func TestSuccessorAnswersForTheDead(t *testing.T) {
	t.Parallel()
	var died atomic.Bool
	r := newRig(t, rigOptions{
		broker: func(c *broker.Config) {
			c.Hooks.OnRequest = func(r broker.Request) broker.Action {
				return broker.Action{Drop: r.Code == codeEndTransaction && r.Ext["fromTransactionCheck"] != "true"}
			}
			c.Hooks.OnCheck = func(broker.Check) broker.Action { return broker.Action{Drop: !died.Load()} }
		},
	})
	_, _, err := r.service(t).Create(t.Context(), request)
	require.NoError(t, err)
	stopped, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, r.producer.Stop(stopped))
	require.Equal(t, 1, r.broker.OpenHalves())
	died.Store(true)

	cfg := r.cfg
	cfg.Registerer = nil
	startProducer(t, cfg)
	r.requireSettled(t)
	require.Len(t, r.messages(t), 1)
}

func TestStopWaitsForLocalTransactions(t *testing.T) {
	t.Parallel()
	inside, goOn := make(chan struct{}), make(chan struct{})
	r := newRig(t, rigOptions{producer: func(c *txmsg.Config) {
		c.LocalTimeout = wait
		c.Hooks.BeforeLocalCommit = func() { close(inside); <-goOn }
	}})
	s := r.service(t)
	created := make(chan error, 1)
	go func() {
		_, _, err := s.Create(context.Background(), request)
		created <- err
	}()
	<-inside
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		stopped <- r.producer.Stop(ctx)
	}()
	probe := orderEvent(t)
	probe.Subject = "\x01" // is refused before anything is sent, so that no half message of a probe stays in doubt
	require.Eventually(t, func() bool {
		_, err := r.producer.PublishInTx(t.Context(), probe, failing)
		return errors.Is(err, txmsg.ErrStopped)
	}, wait, tick, "a stopping producer takes no new work")
	close(goOn)
	require.NoError(t, <-created)
	require.NoError(t, <-stopped)
	r.requireSettled(t)
	require.Len(t, r.messages(t), 1)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	for field, change := range map[string]func(*txmsg.Config){
		"DB": func(c *txmsg.Config) { c.DB = nil }, "Checker": func(c *txmsg.Config) { c.Checker = nil },
		"Group": func(c *txmsg.Config) { c.Group = "" }, "Topic": func(c *txmsg.Config) { c.Topic = "" },
		"name server": func(c *txmsg.Config) { c.NameServers = nil }, "timeouts": func(c *txmsg.Config) { c.HalfTimeout = -1 },
	} {
		cfg := r.cfg
		change(&cfg)
		_, err := txmsg.New(cfg)
		require.ErrorContains(t, err, field)
	}
	ev := orderEvent(t)
	ev.Subject = "xxx\x01"
	_, err := r.producer.PublishInTx(t.Context(), ev, failing)
	require.ErrorIs(t, err, halfbox.ErrRolledBack)
	require.ErrorContains(t, err, "control character")
}

// One of several name servers says nothing, as a machine without power does: the producer gets ready by the others.
func TestSilentNameServer(t *testing.T) {
	t.Parallel()
	w := embedded(t, sqliteAt(t))
	silent := enginetest.NewProxy(t, w.broker.Addr())
	silent.Blackhole()
	w.nameServers = []string{silent.Addr(), w.broker.Addr()}
	n := w.node(t, nodeOptions{producer: func(c *txmsg.Config) { c.HalfTimeout = 0 }}) // the default
	n.awaitReady(t)
}
