package rocketmq_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

// Producer, consumer and tools sign what they send, and the tools' signature is the one that RocketMQ computes: an
// HMAC-SHA1 over the values in the order of their names.
func TestCredentialsSignRequests(t *testing.T) {
	t.Parallel()
	const codeSend, codePull, codeRoute = 10, 11, 105
	var mu sync.Mutex
	seen := map[int]map[string]string{}
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnRequest = func(r broker.Request) broker.Action {
			mu.Lock()
			defer mu.Unlock()
			seen[r.Code] = maps.Clone(r.Ext)
			return broker.Action{}
		}
	})
	creds := rocketmq.Credentials{AccessKey: "halfbox", SecretKey: "hunter2"}
	p, err := rocketmq.NewProducer(rocketmq.ProducerConfig{NameServers: []string{b.Addr()}, Credentials: creds, Group: "g", SendTimeout: wait})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Shutdown()) })
	id := send(t, p, "t", "x")
	in := &inbox{}
	newConsumer(t, b.Addr(), rocketmq.ConsumerConfig{Credentials: creds, Handle: in.collect}).Start()
	require.Eventually(t, func() bool { return in.times(id) > 0 }, wait, tick)
	_, err = remoting.Ask(t.Context(), b.Addr(), codeRoute, map[string]string{"topic": topic, "z": "1"}, remoting.Credentials(creds))
	require.NoError(t, err)

	mu.Lock()
	defer mu.Unlock()
	for _, code := range []int{codeSend, codePull, codeRoute} {
		require.Equal(t, "halfbox", seen[code]["AccessKey"], "request %d", code)
		require.NotEmpty(t, seen[code]["Signature"], "request %d", code)
		require.NotContains(t, slices.Collect(maps.Values(seen[code])), "hunter2", "the secret itself is never sent")
	}
	asked := seen[codeRoute]
	signature := asked["Signature"]
	delete(asked, "Signature")
	mac := hmac.New(sha1.New, []byte("hunter2"))
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		mac.Write([]byte(asked[name]))
	}
	require.Equal(t, base64.StdEncoding.EncodeToString(mac.Sum(nil)), signature)
}
