package rocketmq

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/google/uuid"
)

// InstanceName returns a client instance name that no other object has, in this process or any other.
func InstanceName(purpose string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s-%s", host, os.Getpid(), purpose, uuid.NewString()[:8])
}

// NameServers checks name server addresses ("host:port") and brings them into the form the client takes: it knows
// IP addresses as they are and host names only behind "http://".
func NameServers(addrs []string) ([]string, error) {
	if len(addrs) == 0 {
		return nil, fmt.Errorf("no RocketMQ name server address: write host:port")
	}
	out := make([]string, len(addrs))
	for i, addr := range addrs {
		bare := strings.TrimPrefix(addr, "http://")
		host, port, err := net.SplitHostPort(bare)
		if err != nil || host == "" || strings.ContainsAny(host, " \t/;,") {
			return nil, fmt.Errorf("RocketMQ name server address %q: write host:port", addr)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("RocketMQ name server address %q: port must be a number from 1 to 65535", addr)
		}
		if ip := net.ParseIP(host); ip == nil || ip.To4() == nil {
			bare = "http://" + bare
		}
		out[i] = bare
	}
	return out, nil
}

// Resolver gives the client its name servers.
func Resolver(addrs []string) (primitive.NsResolver, error) {
	norm, err := NameServers(addrs)
	if err != nil {
		return nil, err
	}
	return primitive.NewPassthroughResolver(norm), nil
}

// The widths of names at the broker.
const (
	maxTopic = 127
	maxGroup = 120
)

// CheckTopic refuses what no broker takes as a topic of messages that are sent to it: characters it does not know, and
// the topics that it keeps for itself, retries and dead letters.
func CheckTopic(topic string) error {
	switch {
	case !validName(topic, maxTopic):
		return fmt.Errorf("topic %q: a name is 1 to %d letters, digits, underscores and dashes", topic, maxTopic)
	case strings.HasPrefix(topic, "RMQ_SYS_"), strings.HasPrefix(topic, "rmq_sys_"), strings.HasSuffix(topic, "REPLY_TOPIC"),
		topic == "TBW102", topic == "SCHEDULE_TOPIC_XXXX", topic == "BenchmarkTest", topic == "OFFSET_MOVED_EVENT", topic == "TRANS_CHECK_MAX_TIME_TOPIC", topic == "SELF_TEST_TOPIC":
		return fmt.Errorf("topic %q belongs to the broker", topic)
	}
	return nil
}

// CheckGroup refuses what no broker takes as a group.
func CheckGroup(group string) error {
	if !validName(group, maxGroup) {
		return fmt.Errorf("group %q: a name is 1 to %d letters, digits, underscores and dashes", group, maxGroup)
	}
	return nil
}

func validName(name string, limit int) bool {
	return name != "" && len(name) <= limit && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}
