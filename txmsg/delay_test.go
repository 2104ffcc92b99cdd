package txmsg_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/txmsg"
)

// A delay between any two steps, below and above the deadline that bounds it, never leads to more or less than one
// order with one carrier: the half message or the event record.
func TestDelayBetweenEveryTwoSteps(t *testing.T) {
	t.Parallel()
	const short = 250 * time.Millisecond
	half := func(d time.Duration) func(broker.Request) broker.Action {
		return func(r broker.Request) broker.Action {
			if r.Half {
				return broker.Action{Delay: d}
			}
			return broker.Action{}
		}
	}
	end := func(d time.Duration) func(broker.Request) broker.Action {
		return func(r broker.Request) broker.Action {
			if r.Code == codeEndTransaction && r.Ext["fromTransactionCheck"] != "true" {
				return broker.Action{Delay: d}
			}
			return broker.Action{}
		}
	}
	statement := func(kind database.Op, d time.Duration) database.Hooks {
		return database.Hooks{Before: func(op database.Op, _ string) error {
			if op == kind {
				<-time.After(d)
			}
			return nil
		}}
	}
	for name, tc := range map[string]struct {
		request  func(broker.Request) broker.Action
		response func(broker.Request) broker.Action
		hooks    database.Hooks
		deadline time.Duration    // of the half message
		delivery halfbox.Delivery // empty: either, it is a race with the deadline
	}{
		"half request, short":               {request: half(short / 4), deadline: wait, delivery: halfbox.DeliveryTxmsg},
		"half request, at deadline":         {request: half(short), deadline: short},
		"half request, long":                {request: half(4 * short), deadline: short, delivery: halfbox.DeliveryOutbox},
		"acknowledgement, short":            {response: half(short / 4), deadline: wait, delivery: halfbox.DeliveryTxmsg},
		"acknowledgement, just early":       {response: half(short - 5*time.Millisecond), deadline: short},
		"acknowledgement, just late":        {response: half(short + 5*time.Millisecond), deadline: short},
		"acknowledgement, long":             {response: half(4 * short), deadline: short, delivery: halfbox.DeliveryOutbox},
		"before BEGIN":                      {hooks: statement(database.OpBegin, 2*short), deadline: short},
		"before INSERT":                     {hooks: statement(database.OpQuery, 2*short), deadline: short},
		"before COMMIT":                     {hooks: statement(database.OpCommit, 2*short), deadline: short},
		"END_TRANSACTION, short":            {request: end(short), deadline: wait, delivery: halfbox.DeliveryTxmsg},
		"END_TRANSACTION, beyond the check": {request: end(8 * short), deadline: wait, delivery: halfbox.DeliveryTxmsg},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var began atomic.Bool
			r := newRig(t, rigOptions{
				fallback: true,
				hooks:    tc.hooks,
				broker: func(c *broker.Config) {
					c.Hooks.OnRequest = tc.request
					if tc.response != nil {
						c.Hooks.OnResponse = func(r broker.Request, _ int) broker.Action { return tc.response(r) }
					}
					c.TransactionTimeout = 4 * short // checks do not meet the local transaction, but late halves
				},
				producer: func(c *txmsg.Config) {
					c.HalfTimeout = tc.deadline
					c.Hooks.AfterHalf = func() { began.Store(true) }
				},
			})
			r.awaitReady(t)
			o, _, err := r.service(t).Create(t.Context(), request)
			require.NoError(t, err)
			if tc.delivery != "" {
				require.Equal(t, tc.delivery, o.Delivery)
			}
			// A local transaction that has begun ends by the half message, however late it is.
			require.Equal(t, began.Load(), o.Delivery == halfbox.DeliveryTxmsg)
			r.requireOneCarrier(t, o.MsgID, o.Delivery)
		})
	}
}

// requireOneCarrier waits until nothing is open, and checks that the order went by exactly the way its row says.
func (r *rig) requireOneCarrier(t *testing.T, msgID string, delivery halfbox.Delivery) {
	t.Helper()
	orders, _ := r.rows(t)
	require.Len(t, orders, 1)
	require.Equal(t, msgID, orders[0].MsgID)
	var records []string
	require.NoError(t, r.db.Read.Raw("SELECT msg_id FROM t_event_record").Scan(&records).Error)
	if delivery == halfbox.DeliveryOutbox {
		require.Equal(t, []string{msgID}, records)
		// A half that arrives only now is checked and rolled back.
		require.Never(t, func() bool { return len(r.messages(t)) > 0 }, 2*time.Second, 10*tick)
	} else {
		require.Empty(t, records)
		require.Eventually(t, func() bool { return len(r.messages(t)) == 1 }, wait, tick)
	}
	require.Eventually(t, func() bool { return r.broker.OpenHalves() == 0 }, wait, tick)
}

// The client that calls back after the attempt was abandoned runs nothing, and it is counted.
func TestLateAcknowledgementIsCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	release := make(chan struct{})
	r := newRig(t, rigOptions{
		fallback: true,
		producer: func(c *txmsg.Config) {
			c.Registerer = reg
			c.HalfTimeout = 5 * time.Second // enough for the acknowledgement, which the hook holds back until it has passed
			c.Hooks.HalfStored = func() { <-release }
		},
	})
	r.awaitReady(t)
	o, _, err := r.service(t).Create(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, halfbox.DeliveryOutbox, o.Delivery)
	close(release)
	require.Eventually(t, func() bool { return counter(t, reg, "halfbox_txmsg_late_acks_total") == 1 }, wait, tick)
	r.requireFellBack(t, o)
}

func counter(t testing.TB, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}
