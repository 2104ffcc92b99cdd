package e2e

import (
	"math/rand/v2"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/faults"
)

// armed is a process that stops itself right before the COMMIT of its first order by txmsg, with its order database
// behind a proxy.
func (e *engines) armed(t *testing.T) (s *site, p *process, wire *enginetest.Proxy) {
	t.Helper()
	s = e.newSite(t)
	wire, through := enginetest.MySQLProxy(t, s.dsn["order"])
	p = s.serve(t, []string{
		"HALFBOX_DATABASE_ORDER_DSN=" + through, faults.AllowVariable + "=1", "HALFBOX_TXMSG_HALF_TIMEOUT=15s",
		// Time for the test to set its fault, while checks of the half message are answered UNKNOWN.
		"HALFBOX_TXMSG_LOCAL_TIMEOUT=8s", "HALFBOX_CHECKBACK_GRACE=9s",
	}, "--fault", faults.TxmsgBeforeLocalCommit+"=freeze@1")
	require.NotNil(t, p)
	return s, p, wire
}

// outcome is what a client of its own got.
type outcome struct {
	answer
	err error
}

// atCommit asks for an order, sets a fault while the process stands right before COMMIT, and lets it go on.
func atCommit(t *testing.T, p *process, w wish, fault func()) <-chan outcome {
	t.Helper()
	got := make(chan outcome, 1)
	go func() {
		a, err := w.post(p.api)
		got <- outcome{a, err}
	}()
	require.Eventually(t, func() bool { return state(t, p) == 'T' }, wait, tick, "COMMIT is not reached")
	fault()
	p.signal(t, syscall.SIGCONT)
	return got
}

func requireUnknown(t *testing.T, got <-chan outcome) string {
	t.Helper()
	select {
	case o := <-got:
		require.NoError(t, o.err)
		require.Equal(t, http.StatusServiceUnavailable, o.Status)
		require.Equal(t, "/problems/outcome-unknown", o.Type)
		require.NotEmpty(t, o.OrderNo)
		return o.OrderNo
	case <-time.After(wait):
		t.Fatal("no answer")
		return ""
	}
}

// COMMIT is carried out and its answer is lost.
func commitAnswerLost(t *testing.T, e *engines) {
	s, p, wire := e.armed(t)
	w := wish{Key: "lost", UserID: 5, Amount: 12300, Delivery: "txmsg"}
	got := atCommit(t, p, w, func() { wire.Blackhole(enginetest.ToClient) })
	require.Eventually(t, func() bool { return len(s.readBooks(t).orders) == 1 }, wait, tick, "COMMIT does not arrive")
	wire.Cut()
	no := requireUnknown(t, got)
	wire.Pass()
	status, text := get(t, p.api+"/api/v1/orders/"+no)
	require.Equal(t, http.StatusOK, status, text)
	a := w.fulfil(t, p.api)
	require.Equal(t, http.StatusOK, a.Status, "a repetition makes no second order")
	require.Equal(t, no, a.OrderNo)
	b := s.requireWhole(t, p, []wish{w})
	require.Zero(t, b.voids)
	require.Equal(t, "txmsg", b.orders[no].Delivery)
}

// The connection breaks with COMMIT on its way: the server never sees it.
func commitLost(t *testing.T, e *engines) {
	s, p, wire := e.armed(t)
	w := wish{Key: "lost", UserID: 5, Amount: 12300, Delivery: "txmsg"}
	got := atCommit(t, p, w, func() { wire.DropAfter(0, enginetest.ToServer) })
	require.Never(t, func() bool { return len(s.readBooks(t).orders) > 0 }, time.Second, 5*tick, "COMMIT arrived")
	wire.Cut()
	no := requireUnknown(t, got)
	wire.Pass()
	status, text := get(t, p.api+"/api/v1/orders/"+no)
	require.Equal(t, http.StatusNotFound, status, text)
	a := w.fulfil(t, p.api)
	require.Equal(t, http.StatusCreated, a.Status, "there was no order yet")
	require.NotEqual(t, no, a.OrderNo)
	s.requireWhole(t, p, []wish{w})
}

// Connections to MySQL break at any byte of either direction, again and again, while orders of both deliveries are
// made: whatever the answers say is true.
func connectionsCut(t *testing.T, e *engines) {
	const seed, cuts = 20261201, 40
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := e.newSite(t)
	wire, through := enginetest.MySQLProxy(t, s.dsn["order"])
	p := s.serve(t, []string{"HALFBOX_DATABASE_ORDER_DSN=" + through})
	require.NotNil(t, p)
	l := newLoad(t, "key", p.api)
	for range cuts {
		before := time.Now()
		require.Eventually(t, func() bool { return l.answered(before, anyOrder) >= 2 }, wait, tick, "the clients make no progress: %v", l)
		failed := l.failures()
		wire.CutAfter(rnd.Int64N(3000), enginetest.Direction(rnd.IntN(2)))
		require.Eventually(t, func() bool { return l.failures() > failed }, wait, tick, "nobody notices: %v", l)
		wire.Pass()
	}
	t.Logf("seed %d, %d cuts, %d outcomes unknown", seed, cuts, l.problem("/problems/outcome-unknown"))
	require.Positive(t, l.problem("/problems/outcome-unknown"), "no COMMIT was hit: choose another seed")
	l.requireHonest(t, s)
	require.Zero(t, p.stop(t))
}
