package remoting

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
)

// Queue is one queue of a topic, at the master that has it.
type Queue struct {
	Broker string // the broker's name, which outlives its address
	Addr   string
	ID     int
}

// bareKey finds the numbers that some name servers write as keys without quotes: {0:"host:port"}.
var bareKey = regexp.MustCompile(`([{,])(\d+):`)

// Bits of a topic's perm.
const (
	permRead  = 4
	permWrite = 2
)

// Queues lists the queues of a topic from which one can read; none when the name server does not know the topic.
func Queues(ctx context.Context, nameServer, topic string, creds Credentials) ([]Queue, error) {
	return route(ctx, nameServer, topic, creds, func(q queueData) int { return q.usable(permRead, q.ReadQueueNums) })
}

// WriteQueues lists the queues of a topic that can be written; none when the name server does not know the topic.
func WriteQueues(ctx context.Context, nameServer, topic string, creds Credentials) ([]Queue, error) {
	return route(ctx, nameServer, topic, creds, func(q queueData) int { return q.usable(permWrite, q.WriteQueueNums) })
}

// queueData is what a route says about the queues of a topic at one broker.
type queueData struct {
	BrokerName     string `json:"brokerName"`
	ReadQueueNums  int    `json:"readQueueNums"`
	WriteQueueNums int    `json:"writeQueueNums"`
	Perm           int    `json:"perm"`
}

func (q queueData) usable(perm, n int) int {
	if q.Perm&perm == 0 {
		return 0
	}
	return n
}

func route(ctx context.Context, nameServer, topic string, creds Credentials, count func(queueData) int) ([]Queue, error) {
	a, err := Ask(ctx, nameServer, CodeRoute, map[string]string{"topic": topic, "acceptStandardJsonOnly": "true"}, creds)
	if err != nil || a.Code == CodeTopicNotExist {
		return nil, err
	}
	if a.Code != CodeOK {
		return nil, fmt.Errorf("name server answers code %d: %s", a.Code, a.Remark)
	}
	return readRoute(a.Body, count)
}

// readRoute lists the queues that have a master, sorted; count says how many of a broker are wanted.
func readRoute(body []byte, count func(queueData) int) (queues []Queue, err error) {
	var route struct {
		QueueDatas  []queueData `json:"queueDatas"`
		BrokerDatas []struct {
			BrokerName  string            `json:"brokerName"`
			BrokerAddrs map[string]string `json:"brokerAddrs"`
		} `json:"brokerDatas"`
	}
	if json.Unmarshal(body, &route) != nil {
		if err := json.Unmarshal(bareKey.ReplaceAll(body, []byte(`$1"$2":`)), &route); err != nil {
			return nil, fmt.Errorf("route cannot be read: %w", err)
		}
	}
	masters := map[string]string{}
	for _, b := range route.BrokerDatas {
		masters[b.BrokerName] = b.BrokerAddrs["0"]
	}
	for _, q := range route.QueueDatas {
		if addr := masters[q.BrokerName]; addr != "" {
			for id := range count(q) {
				queues = append(queues, Queue{Broker: q.BrokerName, Addr: addr, ID: id})
			}
		}
	}
	slices.SortFunc(queues, func(a, b Queue) int { return cmp.Or(cmp.Compare(a.Broker, b.Broker), cmp.Compare(a.ID, b.ID)) })
	return queues, nil
}
