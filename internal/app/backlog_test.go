package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/app"
)

// tryPost posts an order and returns the status, the answer's delivery or problem type, and Retry-After.
func tryPost(t testing.TB, a *app.App, body string) (status int, what, retryAfter string) {
	t.Helper()
	res, err := http.Post("http://"+a.Addresses().HTTP+"/api/v1/orders", "application/json", bytes.NewBufferString(body))
	require.NoError(t, err)
	defer res.Body.Close()
	var out struct{ Delivery, Type string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&out))
	return res.StatusCode, out.Delivery + out.Type, res.Header.Get("Retry-After")
}

// oldestUnsent is the metric as the process shows it.
func oldestUnsent(t testing.TB, a *app.App) float64 {
	t.Helper()
	res, err := http.Get("http://" + a.Addresses().Admin + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^halfbox_outbox_oldest_unsent_seconds\{sink="rocketmq"\} (\S+)$`).FindSubmatch(text)
	require.NotNil(t, found)
	v, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(t, err)
	return v
}

// TestBacklogRefusesOrders: an API without any relay knows that nothing is sent, answers 503 for what the outbox would
// have to carry, the fallback of txmsg included, and goes on by itself when a relay has caught up.
func TestBacklogRefusesOrders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, err := broker.Open(broker.Config{Dir: filepath.Join(dir, "broker"), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			require.NoError(t, b.Stop(context.Background()))
		}
	}
	t.Cleanup(stop)
	require.NoError(t, b.Start())
	c := config(t, dir)
	c.RocketMQ.NameServers = []string{b.Addr()}
	c.Outbox.BacklogPolicy, c.Outbox.BacklogLimit = "refuse", time.Second
	const byOutbox, byTxmsg = `{"user_id":3,"amount_cents":200,"delivery":"outbox"}`, `{"user_id":3,"amount_cents":200,"delivery":"txmsg"}`
	api := start(t, c, app.RoleAPI)
	status, what, _ := tryPost(t, api, byOutbox)
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, "outbox", what)
	refused := func(body string) bool {
		status, what, after := tryPost(t, api, body)
		return status == http.StatusServiceUnavailable && what == "/problems/overloaded" && after == "10"
	}
	require.Eventually(t, func() bool { return refused(byOutbox) }, wait, 100*time.Millisecond)
	require.Greater(t, oldestUnsent(t, api), 1.0)
	status, what, _ = tryPost(t, api, byTxmsg)
	require.Equal(t, http.StatusCreated, status, "txmsg needs no outbox while the broker is there")
	require.Equal(t, "txmsg", what)

	relay := start(t, c, app.RoleRelay)
	require.Eventually(t, func() bool { return oldestUnsent(t, api) == 0 }, wait, 100*time.Millisecond)
	status, what, _ = tryPost(t, api, byOutbox)
	require.Equal(t, http.StatusCreated, status)
	require.Equal(t, "outbox", what)

	stopping, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, relay.Stop(stopping))
	stop()
	// Half messages cannot be stored any more: by the fallback at first, until that is refused too.
	require.Eventually(t, func() bool { return refused(byTxmsg) }, wait, 100*time.Millisecond)
}
