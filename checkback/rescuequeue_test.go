package checkback_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// The broker deleted halves before they were looked at: it says so, and goes on with what is there.
func TestRescueOfATrimmedQueue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := quickBroker(t, func(c *broker.Config) { c.Dir = dir })
	w := newWorld(t, newSQLite(t), b.Addr())
	db := w.open(t, database.Options{})
	w.absent(t)
	w.absent(t)
	w.discarded(t)
	r := w.rescue(t, database.Options{})
	eventually(t, func() bool { return r.outcome(t, "rolled_back") == 2 }, "not decided")
	r.stop()
	w.absent(t)
	w.absent(t)
	w.absent(t)
	w.discarded(t)
	b = brokertest.Restart(t, b, func(c *broker.Config) { c.Retention = 100 * time.Millisecond })
	eventually(t, func() bool {
		ts, ok := b.Topic(checkback.DiscardedTopic)
		return ok && ts.Messages() == 0
	}, "not deleted")
	b = brokertest.Restart(t, b, func(c *broker.Config) { c.Retention = time.Hour })
	o, err := w.order(t, db, nil)
	require.NoError(t, err)
	eventually(t, func() bool { return len(enginetest.Discarded(t, w.nameServer, w.group)) == 1 }, "not given up")
	r = w.rescue(t, database.Options{})
	eventually(t, func() bool { return r.outcome(t, "republished") == 1 }, "not rescued")
	require.InDelta(t, 3, r.value(t, "halfbox_rescue_trimmed_total"), 0)
	require.Contains(t, records(t, db), o.MsgID)
	require.Equal(t, "6", w.position(t, db))
}

// The broker's storage is a new one: the position is beyond its end, and the queue is read from its begin.
func TestRescueAtABrokerThatLostItsStorage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newSQLite(t), quickBroker(t).Addr())
	db := w.open(t, database.Options{})
	o, err := w.order(t, db, nil)
	require.NoError(t, err)
	w.discarded(t)
	require.NoError(t, db.Write.Exec("INSERT INTO t_progress (name, position) VALUES (?, '1000')", "rescue/"+w.group+"/halfbox/0").Error)
	r := w.rescue(t, database.Options{})
	eventually(t, func() bool { return r.outcome(t, "republished") == 1 }, "not rescued")
	require.Contains(t, records(t, db), o.MsgID)
	require.Zero(t, r.value(t, "halfbox_rescue_trimmed_total"))
}

// Nothing was ever given up: no errors, no rows, whatever is not there.
func TestRescueWithoutTheTopic(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueWithoutTopic)
}

func rescueWithoutTopic(t *testing.T, w world) {
	db := w.open(t, database.Options{})
	r := w.rescue(t, database.Options{})
	require.Never(t, func() bool { return r.value(t, "halfbox_rescue_errors_total") > 0 }, 10*rescuePoll, rescuePoll, "it complains")
	require.Empty(t, w.position(t, db))
	require.NoError(t, testutil.GatherAndCompare(r.reg, strings.NewReader(`
# HELP halfbox_rescue_behind Half messages given up on that were not looked at yet, other groups' included.
# TYPE halfbox_rescue_behind gauge
halfbox_rescue_behind 0
`), "halfbox_rescue_behind"))
}

// A name server that takes connections and never answers does not keep the rescue from stopping.
func TestRescueStopsInTime(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	asked := make(chan struct{}, 16)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			asked <- struct{}{}
		}
	}()
	w := newWorld(t, newSQLite(t), quickBroker(t).Addr())
	w.nameServer = l.Addr().String()
	// The question itself gives up after 5 s. A stop may be slow for the machine's sake, all of them may not.
	quick := func() bool {
		r := w.rescue(t, database.Options{})
		<-asked
		began := time.Now()
		r.stop()
		return time.Since(began) < time.Second
	}
	for range 5 {
		if quick() {
			return
		}
	}
	require.Fail(t, "every stop waits for the name server")
}

// A rescuer that stops gives its lease back: the next one need not wait for its end.
func TestRescueGivesItsLeaseBack(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		db := w.open(t, database.Options{})
		long := func(c *checkback.RescueConfig) { c.Lease = time.Hour }
		w.absent(t)
		w.discarded(t)
		first := w.rescue(t, database.Options{}, long)
		eventually(t, func() bool { return first.outcome(t, "rolled_back") == 1 }, "not decided")
		second := w.rescue(t, database.Options{}, long)
		o := w.committed(t, db)
		w.discarded(t)
		eventually(t, func() bool { return first.outcome(t, "republished") == 1 }, "the owner of the lease goes on")
		first.stop()
		o2 := w.committed(t, db)
		w.discarded(t)
		eventually(t, func() bool { return second.outcome(t, "republished") == 1 }, "the second does not take over")
		require.Contains(t, records(t, db), o.MsgID)
		require.Contains(t, records(t, db), o2.MsgID)
	})
}
