package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/remoting"
)

// load is a few clients that ask for order after order, of both deliveries in turn, until they are told to stop.
// Every order is repeated under its key until it is there, by the next of the addresses whenever one says nothing.
type load struct {
	stop    chan struct{}
	clients sync.WaitGroup

	mu       sync.Mutex
	apis     []string
	orders   []placed
	problems map[string]int // by status and problem type; "no answer" when there was none
	wrong    []string       // answers that must not be, whatever happens to the engines
}

// placed is an order that was asked for.
type placed struct {
	wish
	got       answer // the last one, empty while there is none
	repeated  bool   // an answer said nothing certain, or there was none
	asked, at time.Time
}

func (o placed) fulfilled() bool { return o.got.made() }

const (
	loadClients = 4
	loadPause   = 50 * time.Millisecond // between two orders of a client
	loadRetry   = 100 * time.Millisecond
)

// newLoad starts the clients. They end with the test at the latest.
func newLoad(t testing.TB, name string, apis ...string) *load {
	l := &load{stop: make(chan struct{}), apis: apis, problems: map[string]int{}}
	for client := range loadClients {
		l.clients.Go(func() { l.run(fmt.Sprintf("%s-%d", name, client), client) })
	}
	t.Cleanup(func() {
		l.end()
		l.clients.Wait()
	})
	return l
}

func (l *load) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
}

// through replaces the addresses.
func (l *load) through(apis ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.apis = apis
}

func (l *load) run(name string, client int) {
	pause := time.NewTicker(loadPause)
	defer pause.Stop()
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-pause.C:
		}
		w := wish{
			Key: fmt.Sprintf("%s-%d", name, n), UserID: int64(1 + (client+n)%17), Amount: int64(100 + 37*n),
			Delivery: alternating(n + client), Cancel: n%5 == 4,
		}
		if !l.place(w, client) {
			return
		}
	}
}

// place repeats a wish until it has its order, and that is cancelled if it says so; false when a minute after the end of the load it still has not.
func (l *load) place(w wish, client int) bool {
	l.mu.Lock()
	index := len(l.orders)
	l.orders = append(l.orders, placed{wish: w, asked: time.Now()})
	l.mu.Unlock()
	retry := time.NewTicker(loadRetry)
	defer retry.Stop()
	var ended <-chan time.Time
	orderNo := ""
	for try := 0; ; try++ {
		l.mu.Lock()
		api := l.apis[(client+try)%len(l.apis)]
		l.mu.Unlock()
		if orderNo == "" {
			if a, err := w.post(api); l.note(index, a, err) {
				orderNo = a.OrderNo
			}
		}
		if orderNo != "" && (!w.Cancel || l.cancel(api, orderNo, w.Delivery)) {
			return true
		}
		if ended == nil {
			select {
			case <-l.stop:
				last := time.NewTimer(wait)
				defer last.Stop()
				ended = last.C
			default:
			}
		}
		select {
		case <-retry.C:
		case <-ended:
			return false
		}
	}
}

// cancel asks for a cancellation once and tells whether it is done.
func (l *load) cancel(api, orderNo, delivery string) bool {
	a, err := cancelOrder(api, orderNo, delivery)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.problems["no answer"]++
	case a.Status == http.StatusOK:
		if a.OrderNo == orderNo {
			return true
		}
		l.wrong = append(l.wrong, fmt.Sprintf("cancel of %s: %+v", orderNo, a))
	case a.Status == http.StatusServiceUnavailable && (a.Type != "/problems/outcome-unknown" || a.OrderNo == orderNo):
		l.problems[a.Type]++
	default:
		l.wrong = append(l.wrong, fmt.Sprintf("cancel of %s: %+v", orderNo, a))
	}
	return false
}

// note keeps an answer and tells whether the order is there.
func (l *load) note(index int, a answer, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &l.orders[index]
	switch {
	case err != nil:
		l.problems["no answer"]++
		o.repeated = true
		return false
	case a.Status == http.StatusOK && !o.repeated:
		l.wrong = append(l.wrong, fmt.Sprintf("%s: 200 for a key that was not used before", o.Key))
	case a.Status == http.StatusCreated || a.Status == http.StatusOK:
	case a.Status == http.StatusServiceUnavailable && (a.Type == "/problems/unavailable" || a.Type == "/problems/overloaded"):
		l.problems[a.Type]++
		return false
	case a.Status == http.StatusServiceUnavailable && a.Type == "/problems/outcome-unknown" && a.OrderNo != "":
		l.problems[a.Type]++
		o.repeated = true
		return false
	default:
		l.wrong = append(l.wrong, fmt.Sprintf("%s: %+v", o.Key, a))
		return false
	}
	o.got, o.at = a, time.Now()
	return true
}

// look calls f with what there is.
func (l *load) look(f func(orders []placed, problems map[string]int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.orders, l.problems)
}

// failures counts the answers, and the lack of one, by which a request has to be repeated.
func (l *load) failures() (n int) {
	l.look(func(_ []placed, problems map[string]int) {
		for _, count := range problems {
			n += count
		}
	})
	return n
}

func (l *load) problem(name string) (n int) {
	l.look(func(_ []placed, problems map[string]int) { n = problems[name] })
	return n
}

// answered counts the orders whose answer came after some moment and that fit.
func (l *load) answered(after time.Time, fit func(o placed) bool) (n int) {
	l.look(func(orders []placed, _ map[string]int) {
		for _, o := range orders {
			if o.fulfilled() && o.at.After(after) && fit(o) {
				n++
			}
		}
	})
	return n
}

// first waits for the first answer to a request that was made after some moment and fits.
func (l *load) first(t testing.TB, after time.Time, fit func(o placed) bool, what string) (found placed) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.look(func(orders []placed, _ map[string]int) {
			fits := func(o placed) bool { return o.fulfilled() && o.asked.After(after) && fit(o) }
			all := slices.SortedFunc(func(yield func(placed) bool) {
				for _, o := range orders {
					if fits(o) && !yield(o) {
						return
					}
				}
			}, func(a, b placed) int { return a.at.Compare(b.at) })
			if len(all) > 0 {
				found = all[0]
			}
		})
		return found.Key != ""
	}, wait, tick, "%s: %v", what, l)
	return found
}

func (l *load) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	by := map[string]int{}
	for _, o := range l.orders {
		by[fmt.Sprintf("%s by %s", o.Delivery, cmp.Or(o.got.Via, "nothing yet"))]++
	}
	text := fmt.Sprintf("%d orders", len(l.orders))
	for _, counts := range []map[string]int{by, l.problems} {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			text += fmt.Sprintf(", %s: %d", name, counts[name])
		}
	}
	return text
}

// Which orders are meant.
func anyOrder(placed) bool   { return true }
func byTxmsg(o placed) bool  { return o.got.Via == "txmsg" }
func fellBack(o placed) bool { return o.Delivery == "txmsg" && o.got.Via == "outbox" }

// requireHonest ends the load, waits until all is settled, and checks the invariants and that every answer was true.
func (l *load) requireHonest(t testing.TB, s *site) {
	t.Helper()
	l.end()
	l.clients.Wait()
	t.Log(l)
	require.Empty(t, l.wrong, "answers that must not be")
	s.requireSettled(t)
	all := make([]wish, len(l.orders))
	for i, o := range l.orders {
		all[i] = o.wish
	}
	b := s.requireBooks(t, all)
	for _, o := range l.orders {
		require.True(t, o.fulfilled(), "no order for %s", o.Key)
		row, ok := b.orders[o.got.OrderNo]
		require.True(t, ok, "order %s was answered and is not there", o.got.OrderNo)
		require.Equal(t, []any{o.Key, o.UserID, o.Amount, o.got.MsgID, o.got.Via},
			[]any{row.IdempotencyKey, row.UserID, row.AmountCents, row.MsgID, row.Delivery}, "order %s", o.got.OrderNo)
	}
}

// uncredited counts the orders of before some moment that have no points yet. Both schemas are on one server.
func (s *site) uncredited(t testing.TB, before time.Time) (n int64) {
	t.Helper()
	points, err := mysql.ParseDSN(s.dsn["points"])
	require.NoError(t, err)
	s.query(t, "order", fmt.Sprintf(`SELECT COUNT(*) FROM t_order o LEFT JOIN %s.t_points_record r ON r.order_no = o.order_no
		WHERE o.status <> 'VOID' AND r.id IS NULL AND o.created_at < '%s'`,
		points.DBName, before.UTC().Format("2006-01-02 15:04:05.000000")), &n)
	return n
}

// credited tells whether an order has its points.
func (s *site) credited(t testing.TB, orderNo string) bool {
	t.Helper()
	var n int
	s.query(t, "points", fmt.Sprintf("SELECT COUNT(*) FROM t_points_record WHERE order_no = '%s' AND type = 'EARN'", orderNo), &n)
	return n == 1
}

// settledIn waits until all orders of before a moment have their points, and returns how long after it that was.
func (s *site) settledIn(t testing.TB, before time.Time) time.Duration {
	t.Helper()
	require.Eventually(t, func() bool { return s.uncredited(t, before) == 0 }, 2*wait, 10*tick,
		"orders without points: %v", lazy(func() string { return fmt.Sprint(s.uncredited(t, before)) }))
	return time.Since(before)
}

// reachable tells, once somebody asks, when an address took a connection for the first time from now on.
func reachable(t testing.TB, addr string) (at func() time.Time) {
	t.Helper()
	return firstTime(t, addr+" is reachable", func(ctx context.Context) bool { return dials(ctx, addr) })
}

// brokerBack is reachable for a broker: as long as its name server does not know it nobody finds it, which is some
// seconds longer.
func brokerBack(t testing.TB, r *enginetest.OwnedRocketMQ) (at func() time.Time) {
	t.Helper()
	return firstTime(t, "the broker is registered", func(ctx context.Context) bool {
		queues, err := remoting.Queues(ctx, r.NameServers()[0], "TBW102", remoting.Credentials{})
		return err == nil && len(queues) > 0 && dials(ctx, r.BrokerAddr())
	})
}

func dials(ctx context.Context, addr string) bool {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func firstTime(t testing.TB, what string, holds func(ctx context.Context) bool) (at func() time.Time) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan time.Time, 1)
	var asking sync.WaitGroup
	asking.Go(func() {
		every := time.NewTicker(tick)
		defer every.Stop()
		for !holds(ctx) {
			select {
			case <-every.C:
			case <-ctx.Done():
				return
			}
		}
		seen <- time.Now()
	})
	t.Cleanup(func() {
		cancel()
		asking.Wait()
	})
	return func() time.Time {
		select {
		case when := <-seen:
			return when
		case <-time.After(wait):
			t.Fatalf("never happened: %s", what)
			return time.Time{}
		}
	}
}

// requireReady waits until /readyz says "ok" of everything. One look has 2 s only, which a busy machine may need.
func requireReady(t testing.TB, admin string) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, by := checks(t, admin)
		for _, answer := range by {
			if answer != "ok" {
				return false
			}
		}
		return status == http.StatusOK
	}, wait, 10*tick, "not ready: %v", lazy(func() string { _, by := checks(t, admin); return fmt.Sprint(by) }))
}

// checks is what /readyz says: "ok" or why not, by what it looks at.
func checks(t testing.TB, admin string) (status int, by map[string]string) {
	t.Helper()
	status, text := get(t, admin+"/readyz")
	var body struct{ Checks map[string]string }
	require.NoError(t, json.Unmarshal([]byte(text), &body))
	return status, body.Checks
}
