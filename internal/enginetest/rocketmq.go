package enginetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/remoting"
)

// RocketMQ returns the name server addresses of a RocketMQ cluster, which all tests share.
func RocketMQ(t testing.TB) []string {
	t.Helper()
	if list := os.Getenv(EnvRocketMQ); list != "" {
		addrs := strings.Split(list, ",")
		for _, addr := range addrs {
			_, _, err := net.SplitHostPort(addr)
			require.NoError(t, err, EnvRocketMQ)
		}
		return addrs
	}
	addr, err := dockerRocketMQ()
	if err != nil {
		missing(t, "RocketMQ", EnvRocketMQ, err)
	}
	return []string{addr}
}

// Topic creates a topic that no other test has. A consumer may start before the first message is sent: the topic has
// a route when Topic returns.
func Topic(t testing.TB, nameServers []string) string {
	t.Helper()
	name := Name(t, "topic")
	CreateTopic(t, nameServers, name)
	return name
}

// CreateTopic creates a topic and returns once the name server has a route to it.
func CreateTopic(t testing.TB, nameServers []string, name string) {
	t.Helper()
	require.NotEmpty(t, nameServers)
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	require.NoError(t, createTopic(ctx, nameServers[0], name), "topic %s", name)
}

// topicQueues is the number of queues of a topic of tests: more than one, as topics in use have, and few, because every
// consumer asks for each.
const topicQueues = 4

func createTopic(ctx context.Context, nameServer, name string) error {
	if err := remoting.EnsureTopic(ctx, nameServer, name, topicQueues, remoting.Credentials{}); err != nil {
		return err
	}
	return untilNil(ctx, 20*time.Millisecond, func() error {
		brokers, err := remoting.Route(ctx, nameServer, name, remoting.Credentials{})
		if err == nil && len(brokers) == 0 {
			err = fmt.Errorf("name server %s does not know it yet", nameServer)
		}
		return err
	})
}

// untilNil calls f until it succeeds. When ctx ends first, the error is f's last.
func untilNil(ctx context.Context, every time.Duration, f func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}
