package rocketmq_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

func TestNameServers(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"127.0.0.1:9876":          "127.0.0.1:9876",
		"http://127.0.0.1:9876":   "127.0.0.1:9876",
		"localhost:9876":          "http://localhost:9876",
		"http://localhost:9876":   "http://localhost:9876",
		"rmq.example.org:1":       "http://rmq.example.org:1",
		"rmq-namesrv-0.svc:65535": "http://rmq-namesrv-0.svc:65535",
		"[::1]:9876":              "http://[::1]:9876",
	}
	for in, want := range good {
		got, err := rocketmq.NameServers([]string{in})
		require.NoError(t, err, in)
		require.Equal(t, []string{want}, got)
		_, err = rocketmq.Resolver([]string{in})
		require.NoError(t, err, in)
	}
	got, err := rocketmq.NameServers([]string{"127.0.0.1:1", "b:2"})
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1:1", "http://b:2"}, got)

	for _, in := range []string{"", "localhost", "127.0.0.1", "localhost:", "localhost:x", "localhost:0", "localhost:65536", "localhost:-1", "::1:9876", ":9876", "a:1;b:2", "https://a:1", "a b:1"} {
		_, err := rocketmq.NameServers([]string{"127.0.0.1:9876", in})
		require.Error(t, err, "%q", in)
		require.Contains(t, err.Error(), "name server", "%q", in)
		_, err = rocketmq.Resolver([]string{in})
		require.Error(t, err, "%q", in)
	}
	for _, none := range [][]string{nil, {}} {
		_, err := rocketmq.NameServers(none)
		require.ErrorContains(t, err, "host:port")
	}
}

func TestInstanceNameIsUnique(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		name := rocketmq.InstanceName("test")
		require.Contains(t, name, "test")
		require.False(t, seen[name], name)
		seen[name] = true
	}
}

func TestNewConsumerRefusesAnIncompleteConfig(t *testing.T) {
	t.Parallel()
	full := rocketmq.ConsumerConfig{NameServers: []string{"127.0.0.1:9876"}, Group: "g", Topic: topic, Handle: (&inbox{}).collect}
	for name, change := range map[string]func(*rocketmq.ConsumerConfig){
		"group":        func(c *rocketmq.ConsumerConfig) { c.Group = "" },
		"topic":        func(c *rocketmq.ConsumerConfig) { c.Topic = "" },
		"handler":      func(c *rocketmq.ConsumerConfig) { c.Handle = nil },
		"name servers": func(c *rocketmq.ConsumerConfig) { c.NameServers = nil },
		"bad server":   func(c *rocketmq.ConsumerConfig) { c.NameServers = []string{"x"} },
	} {
		cfg := full
		change(&cfg)
		_, err := rocketmq.NewConsumer(cfg)
		require.Error(t, err, name)
	}
}

func TestCheckTopicAndGroup(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"ORDER_EVENT_TOPIC", "a", "a-b_9", strings.Repeat("x", 120)} {
		require.NoError(t, rocketmq.CheckTopic(good))
		require.NoError(t, rocketmq.CheckGroup(good))
	}
	for _, bad := range []string{"", "a b", "a.b", "a\x01", "a/b", "%RETRY%points", "%DLQ%points", "öl", strings.Repeat("x", 128)} {
		require.Error(t, rocketmq.CheckTopic(bad), bad)
		require.Error(t, rocketmq.CheckGroup(bad), bad)
	}
	for _, theirs := range []string{"TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer"} {
		require.ErrorContains(t, rocketmq.CheckTopic(theirs), "belongs to the broker", theirs)
	}
}
