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

const (
	// templateTopic is known to every broker that may create topics.
	templateTopic = "TBW102"
	// topicQueues is the number of queues of a topic of tests: more than one, as topics in use have, and few, because
	// every consumer asks for each.
	topicQueues = "4"
)

func createTopic(ctx context.Context, nameServer, name string) error {
	// The in-process broker makes a topic when its route is asked for.
	if answer, err := ask(ctx, nameServer, codeRoute, map[string]string{"topic": name}); err != nil || answer.head.Code == codeOK {
		return err
	}
	route, err := ask(ctx, nameServer, codeRoute, map[string]string{"topic": templateTopic})
	if err != nil {
		return err
	}
	brokers := brokerAddrs(route.body)
	if len(brokers) == 0 {
		return fmt.Errorf("name server %s knows no broker that creates topics: %s", nameServer, route.head.Remark)
	}
	for _, addr := range brokers {
		answer, err := ask(ctx, addr, codeUpdateTopic, map[string]string{
			"topic": name, "defaultTopic": templateTopic, "readQueueNums": topicQueues, "writeQueueNums": topicQueues,
			"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
		})
		if err != nil {
			return err
		}
		if answer.head.Code != codeOK {
			return fmt.Errorf("broker %s: code %d: %s", addr, answer.head.Code, answer.head.Remark)
		}
	}
	return untilNil(ctx, 20*time.Millisecond, func() error {
		answer, err := ask(ctx, nameServer, codeRoute, map[string]string{"topic": name})
		if err == nil && answer.head.Code != codeOK {
			err = errors.New(answer.head.Remark)
		}
		return err
	})
}

// ask sends one request on a connection of its own.
func ask(ctx context.Context, addr string, code int, ext map[string]string) (frame, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return frame{}, err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	request, err := header{Code: code, Language: "GO", Version: protocolVersion, Opaque: 1, ExtFields: ext}.encode()
	if err != nil {
		return frame{}, err
	}
	if _, err := conn.Write(request); err != nil {
		return frame{}, err
	}
	answer, err := readFrame(conn)
	if err != nil {
		return frame{}, fmt.Errorf("%s: answer to request %d: %w", addr, code, err)
	}
	return answer, nil
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
