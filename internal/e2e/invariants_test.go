package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// books is what the two databases say.
type books struct {
	orders  map[string]orderRow // by order_no, tombstones left out
	records []recordRow
	balance map[int64]int64
	voids   int
}

type orderRow struct {
	OrderNo        string
	Status         string
	UserID         int64
	AmountCents    int64
	MsgID          string
	Delivery       string
	IdempotencyKey string
}

type recordRow struct {
	OrderNo string
	MsgID   string
	UserID  int64
	Points  int64
	Type    string
}

func (s *site) readBooks(t testing.TB) books {
	t.Helper()
	b := books{orders: map[string]orderRow{}, balance: map[int64]int64{}}
	var orders []orderRow
	s.query(t, "order", "SELECT order_no, status, user_id, amount_cents, msg_id, delivery, idempotency_key FROM t_order WHERE status <> 'VOID'", &orders)
	for _, o := range orders {
		b.orders[o.OrderNo] = o
	}
	s.query(t, "order", "SELECT COUNT(*) FROM t_order WHERE status = 'VOID'", &b.voids)
	s.query(t, "points", "SELECT order_no, msg_id, user_id, points, type FROM t_points_record", &b.records)
	var accounts []struct{ UserID, Balance int64 }
	s.query(t, "points", "SELECT user_id, balance FROM t_points_account", &accounts)
	for _, a := range accounts {
		b.balance[a.UserID] = a.Balance
	}
	return b
}

// violations lists what breaks I1 (every order that was not cancelled is credited exactly once), I2 (no points without
// an order), I3 (a cancelled order ends with net zero points) and I4 (balance is the sum of the ledger).
func (b books) violations() (broken []string) {
	byOrder := map[string]map[string][]recordRow{}
	sums := map[int64]int64{}
	for _, r := range b.records {
		sums[r.UserID] += r.Points
		if _, ok := b.orders[r.OrderNo]; !ok {
			broken = append(broken, fmt.Sprintf("I2: points for order %s, which does not exist", r.OrderNo))
		}
		if byOrder[r.OrderNo] == nil {
			byOrder[r.OrderNo] = map[string][]recordRow{}
		}
		byOrder[r.OrderNo][r.Type] = append(byOrder[r.OrderNo][r.Type], r)
	}
	for no, o := range b.orders {
		broken = append(broken, o.violations(byOrder[no]["EARN"], byOrder[no]["REVERSE"])...)
	}
	for user, balance := range b.balance {
		if balance != sums[user] {
			broken = append(broken, fmt.Sprintf("I4: user %d has balance %d, ledger %d", user, balance, sums[user]))
		}
	}
	return broken
}

func (o orderRow) violations(earns, reverses []recordRow) (broken []string) {
	bad := func(invariant string) {
		broken = append(broken, fmt.Sprintf("%s: order %+v has %+v and %+v", invariant, o, earns, reverses))
	}
	if len(earns) != 1 {
		bad("I1")
		return broken
	}
	earn := earns[0]
	cancelled := o.Status == "CANCELLED"
	overtaken := cancelled && earn.MsgID == "void:"+o.OrderNo && earn.Points == 0
	if earn.UserID != o.UserID || !overtaken && (earn.Points != o.AmountCents/100 || earn.MsgID != o.MsgID) {
		bad("I1")
	}
	switch {
	case !cancelled && len(reverses) > 0, cancelled && len(reverses) != 1:
		bad("I3")
	case cancelled && (reverses[0].Points != -earn.Points || reverses[0].UserID != o.UserID):
		bad("I3")
	}
	return broken
}

// requireWhole waits until every order is credited and no half message is open, then stops the process and checks
// all invariants on the databases at rest.
func (s *site) requireWhole(t testing.TB, p *process, all []wish) books {
	t.Helper()
	s.requireSettled(t)
	if s.embedded() {
		require.Eventually(t, func() bool { return metric(t, p, "halfbox_broker_half_open") == 0 }, wait, tick, "half messages stay open")
	}
	require.Zero(t, p.stop(t))
	return s.requireBooks(t, all)
}

// requireSettled waits until the books are in order.
func (s *site) requireSettled(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return len(s.readBooks(t).violations()) == 0 }, wait, 10*tick,
		"the books do not settle: %v", lazy(func() string { return fmt.Sprint(s.readBooks(t).violations()) }))
}

// requireBooks checks the invariants on databases at rest, and that every wish has its one order.
func (s *site) requireBooks(t testing.TB, all []wish) books {
	t.Helper()
	b := s.readBooks(t)
	require.Empty(t, b.violations())
	byKey := map[string][]string{}
	for _, o := range b.orders {
		byKey[o.IdempotencyKey] = append(byKey[o.IdempotencyKey], o.Status)
	}
	for _, w := range all {
		want := "CREATED"
		if w.Cancel {
			want = "CANCELLED"
		}
		require.Equal(t, []string{want}, byKey[w.Key], "I7: orders under key %s", w.Key)
	}
	require.Len(t, b.orders, len(all))
	return b
}

// lazy makes a failure message only when it is printed.
type lazy func() string

func (l lazy) String() string { return l() }
