package txmsg_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/txmsg"
)

// The races between a check-back and what it asks about, each on every engine:
//
//	before the local transaction            TestRaceCheckBefore
//	during it, its row written              TestRaceCheckDuring
//	during it, its row not yet written      TestRaceCheckBeforeTheRow (a local transaction slower than the check)
//	after it, COMMIT's answer lost          TestRaceCheckAfter
//	by two instances, the same half         TestRaceTwoInstances
//	after a fallback                        TestRaceCheckAfterFallback
//	of a committed one, again               TestRaceCheckOfCommittedAgain
//	by the successor of a dead process      TestSuccessorIsAskedRightAfterReady

// A check that is faster than the local transaction voids the attempt; one new attempt follows.
func TestRaceCheckBefore(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		var n *node
		var first sync.Once
		n = w.node(t, nodeOptions{producer: func(c *txmsg.Config) {
			c.Hooks.AfterHalf = func() { first.Do(func() { n.expose(t, contains(checkback.Rollback)) }) }
		}})
		n.awaitReady(t)
		o, _, err := n.service(t).Create(t.Context(), request)
		require.NoError(t, err)
		n.requireOne(t, o)
		_, tombstones := n.rows(t)
		require.Len(t, tombstones, 1)
		require.NotContains(t, n.answers(tombstones[0].MsgID), checkback.Commit)
	})
}

// A check during the local transaction waits for its row and answers UNKNOWN, however old the half message is.
func TestRaceCheckDuring(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		var n *node
		n = w.node(t, nodeOptions{producer: func(c *txmsg.Config) {
			c.Hooks.BeforeLocalCommit = func() { n.expose(t, atLeast(2)) } // the first may be for its age alone
		}})
		n.awaitReady(t)
		o, _, err := n.service(t).Create(t.Context(), request)
		require.NoError(t, err)
		n.requireOne(t, o)
		_, tombstones := n.rows(t)
		require.Empty(t, tombstones)
		require.NotContains(t, n.answers(o.MsgID), checkback.Rollback)
	})
}

// The local transaction has begun and not yet written its row: on MySQL the check's tombstone is first and the local
// transaction fails on its key, to be made again; on SQLite the check cannot write beside it and answers UNKNOWN.
func TestRaceCheckBeforeTheRow(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		var n *node
		n = w.node(t, nodeOptions{hooks: onceBefore("INSERT INTO t_order", func() {
			enough := atLeast(2)
			if n.db.Dialect == database.MySQL {
				enough = contains(checkback.Rollback)
			}
			n.expose(t, enough)
		})})
		n.awaitReady(t)
		o, _, err := n.service(t).Create(t.Context(), request)
		require.NoError(t, err)
		n.requireOne(t, o)
		require.NotContains(t, n.answers(o.MsgID), checkback.Rollback, "an order that is there was rolled back at the broker")
		_, tombstones := n.rows(t)
		if n.db.Dialect == database.MySQL {
			require.Len(t, tombstones, 1)
		} else {
			require.Empty(t, tombstones)
		}
	})
}

// loseCommit cuts the connection at the next COMMIT once it is armed: after the database has carried it out, or before.
func loseCommit(armed *atomic.Bool, commits bool) database.Hooks {
	hook := func(op database.Op, _ string) error {
		if op == database.OpCommit && armed.CompareAndSwap(true, false) {
			return errors.New("injected: connection lost")
		}
		return nil
	}
	if commits {
		return database.Hooks{After: hook}
	}
	return database.Hooks{Before: hook}
}

// COMMIT's answer was lost, so the broker was told UNKNOWN and asks after the local transaction: the table decides.
func TestRaceCheckAfter(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"it did commit": true, "it did not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onWorlds(t, func(t *testing.T, w world) {
				var armed atomic.Bool
				hooks := loseCommit(&armed, commits)
				n := w.node(t, nodeOptions{hooks: hooks})
				n.awaitReady(t)
				armed.Store(true)
				_, _, err := n.service(t).Create(t.Context(), request)
				require.ErrorIs(t, err, halfbox.ErrUnknown)
				want := checkback.Rollback
				if commits {
					want = checkback.Commit
				}
				require.Eventually(t, func() bool { return contains(want)(n.answers("")) }, 2*wait, tick)
				orders, tombstones := n.rows(t)
				if commits {
					require.Len(t, orders, 1)
					require.Empty(t, tombstones)
					n.requireDelivered(t, orders[0].MsgID, 1)
					require.NotContains(t, n.answers(""), checkback.Rollback)
					return
				}
				require.Empty(t, orders)
				require.Len(t, tombstones, 1)
				n.requireDelivered(t, tombstones[0].MsgID, 0)
				require.NotContains(t, n.answers(""), checkback.Commit)
			})
		})
	}
}

// Two instances are asked about the same half message at once. Each answers from the table, so they agree; one that meets
// the other in the middle says UNKNOWN.
func TestRaceTwoInstances(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"committed": true, "not committed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onWorlds(t, func(t *testing.T, w world) {
				var armed atomic.Bool
				hooks := loseCommit(&armed, commits)
				// Whichever the broker asks, the other is asked with it.
				var instances []*node
				both := func(h checkback.Half) (checkback.Answer, bool) {
					if slices.ContainsFunc(instances, func(n *node) bool { return n.spares(h.MsgID) }) {
						return checkback.Unknown, true
					}
					answers := make([]checkback.Answer, len(instances))
					var wg sync.WaitGroup
					for i, n := range instances {
						wg.Go(func() { answers[i] = n.inner.Check(t.Context(), h); n.keep(h, answers[i]) })
					}
					wg.Wait()
					return answers[0], true
				}
				a := w.node(t, nodeOptions{hooks: hooks, checker: both})
				b := w.node(t, nodeOptions{checker: both, producer: func(c *txmsg.Config) { c.Group = a.cfg.Group }})
				instances = []*node{a, b}
				a.awaitReady(t)
				b.awaitReady(t)
				armed.Store(true)
				_, _, err := a.service(t).Create(t.Context(), request)
				require.ErrorIs(t, err, halfbox.ErrUnknown)
				want, never := checkback.Commit, checkback.Rollback
				if !commits {
					want, never = never, want
				}
				require.Eventually(t, func() bool { return contains(want)(a.answers("")) && contains(want)(b.answers("")) }, 2*wait, tick)
				require.NotContains(t, append(a.answers(""), b.answers("")...), never)
				require.Len(t, a.asked(), 1)
				require.Equal(t, a.asked(), b.asked())
				orders, tombstones := a.rows(t)
				require.Equal(t, 1, len(orders)+len(tombstones))
				if commits {
					a.requireDelivered(t, orders[0].MsgID, 1)
				} else {
					a.requireDelivered(t, tombstones[0].MsgID, 0)
				}
			})
		})
	}
}

// A half message was stored and its acknowledgement came too late, so the order went to the outbox under another id: the
// check finds the order under that one and rolls the half message back, without a tombstone.
func TestRaceCheckAfterFallback(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		proxy := enginetest.NewRocketMQProxy(t, w.nameServers)
		w.nameServers = proxy.NameServers()
		var silenced atomic.Bool
		n := w.node(t, nodeOptions{fallback: true, producer: func(c *txmsg.Config) {
			c.HalfTimeout = time.Second
			c.Hooks.BeforeHalf = func() {
				if silenced.CompareAndSwap(false, true) {
					proxy.Broker(t).Blackhole(enginetest.ToClient)
				}
			}
		}})
		n.awaitReady(t)
		o, _, err := n.service(t).Create(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, halfbox.DeliveryOutbox, o.Delivery)
		proxy.Broker(t).Pass()
		require.Eventually(t, func() bool { return contains(checkback.Rollback)(n.answers("")) }, 2*wait, tick)
		require.Len(t, n.asked(), 1)
		require.NotEqual(t, o.MsgID, n.asked()[0])
		n.requireDelivered(t, n.asked()[0], 0)
		orders, tombstones := n.rows(t)
		require.Len(t, orders, 1)
		require.Empty(t, tombstones, "the order is there: nothing has to be buried")
		records, err := outbox.Get(t.Context(), n.db, o.MsgID)
		require.NoError(t, err)
		require.Len(t, records, 1)
	})
}

// The broker checks a half message that it has committed already, as RocketMQ does when its batch of op records is late
// or lost (KeepHalf brings that about): the answer is COMMIT each time. Every check is one more delivery, under the one
// id by which the consumer tells them apart.
func TestRaceCheckOfCommittedAgain(t *testing.T) {
	t.Parallel()
	var kept sync.Map
	onWorlds(t, func(t *testing.T, w world) {
		n := w.node(t, nodeOptions{})
		n.awaitReady(t)
		o, _, err := n.service(t).Create(t.Context(), request)
		require.NoError(t, err)
		n.requireDelivered(t, o.MsgID, 3)
		require.NotContains(t, n.answers(o.MsgID), checkback.Rollback)
		require.GreaterOrEqual(t, n.commits(o.MsgID), 2)
		orders, tombstones := n.rows(t)
		require.Len(t, orders, 1)
		require.Empty(t, tombstones)
	}, func(c *broker.Config) {
		c.Hooks.KeepHalf = func(id string) bool {
			v, _ := kept.LoadOrStore(id, new(atomic.Int32))
			return v.(*atomic.Int32).Add(1) <= 2
		}
	})
}

// A process died with a half message in doubt. Its successor has sent nothing yet: when it is ready the broker knows it
// (the broker itself says so), and asks it.
func TestSuccessorIsAskedRightAfterReady(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		var armed atomic.Bool
		silent := func(checkback.Half) (checkback.Answer, bool) { return checkback.Unknown, true }
		dead := w.node(t, nodeOptions{checker: silent, hooks: loseCommit(&armed, true)})
		armed.Store(true)
		_, _, err := dead.service(t).Create(t.Context(), request)
		require.ErrorIs(t, err, halfbox.ErrUnknown)
		orders, _ := dead.rows(t)
		require.Len(t, orders, 1)
		stopped, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		require.NoError(t, dead.producer.Stop(stopped))

		next := w.node(t, nodeOptions{producer: func(c *txmsg.Config) { c.Group = dead.cfg.Group }})
		next.awaitReady(t)
		requireKnown(t, next) // at once: the first moment at which it says that it is ready
		next.requireDelivered(t, orders[0].MsgID, 1)
		require.Equal(t, []string{orders[0].MsgID}, next.asked())
	})
}

// requireKnown asks the brokers themselves.
func requireKnown(t testing.TB, n *node) {
	t.Helper()
	brokers, err := remoting.Route(t.Context(), n.nameServers[0], n.topic, remoting.Credentials{})
	require.NoError(t, err)
	require.NotEmpty(t, brokers)
	for _, addr := range brokers {
		known, supported, err := remoting.KnowsProducer(t.Context(), addr, n.cfg.Group, n.producer.Instance(), remoting.Credentials{})
		require.NoError(t, err)
		require.True(t, supported)
		require.True(t, known, "broker %s does not know a producer that is ready", addr)
	}
}
