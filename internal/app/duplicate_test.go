package app_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/brokertest"
)

// A send that the broker stored but whose answer is lost is sent again: the broker has it twice, the ledger once.
func TestSendAnswerLostIsCreditedOnce(t *testing.T) {
	t.Parallel()
	const codeSend = 10
	var lost atomic.Int32
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnResponse = func(r broker.Request, _ int) broker.Action {
			return broker.Action{Drop: r.Code == codeSend && !r.Half && lost.Add(1) == 1}
		}
	})
	c := config(t, t.TempDir())
	c.RocketMQ.NameServers = []string{b.Addr()}
	c.Outbox.SendTimeout = 500 * time.Millisecond
	a := start(t, c, app.Roles()...)
	o := post(t, a, `{"user_id":5,"amount_cents":700,"delivery":"outbox"}`)
	require.Eventually(t, func() bool {
		found, err := b.FindMessages(c.RocketMQ.OrderTopic, o["msg_id"].(string))
		require.NoError(t, err)
		return len(found) >= 2 // more where the machine makes other answers late
	}, wait, tick)
	require.Eventually(t, func() bool {
		by := outcomes(t, a)
		return by["duplicate_msg_id"] >= 1 && by["credited"] >= 1
	}, wait, tick)
	require.InDelta(t, 7, balance(t, a, 5), 0)
	require.InDelta(t, 1, outcomes(t, a)["credited"], 0)
}

// outcomes reads the points consumer's counter from /metrics.
func outcomes(t testing.TB, a *app.App) map[string]float64 {
	t.Helper()
	res, err := http.Get("http://" + a.Addresses().Admin + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	require.NoError(t, err)
	by := map[string]float64{}
	for _, m := range families["halfbox_points_messages_total"].GetMetric() {
		by[strings.Clone(m.GetLabel()[0].GetValue())] = m.GetCounter().GetValue()
	}
	return by
}
