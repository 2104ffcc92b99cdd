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

// Queues lists the queues of a topic from which one can read; none when the name server does not know the topic.
func Queues(ctx context.Context, nameServer, topic string, creds Credentials) ([]Queue, error) {
	a, err := Ask(ctx, nameServer, CodeRoute, map[string]string{"topic": topic, "acceptStandardJsonOnly": "true"}, creds)
	if err != nil || a.Code == CodeTopicNotExist {
		return nil, err
	}
	if a.Code != CodeOK {
		return nil, fmt.Errorf("name server answers code %d: %s", a.Code, a.Remark)
	}
	return readRoute(a.Body)
}

func readRoute(body []byte) (queues []Queue, err error) {
	const permRead = 4
	var route struct {
		QueueDatas []struct {
			BrokerName    string `json:"brokerName"`
			ReadQueueNums int    `json:"readQueueNums"`
			Perm          int    `json:"perm"`
		} `json:"queueDatas"`
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
		if addr := masters[q.BrokerName]; addr != "" && q.Perm&permRead != 0 {
			for id := range q.ReadQueueNums {
				queues = append(queues, Queue{Broker: q.BrokerName, Addr: addr, ID: id})
			}
		}
	}
	slices.SortFunc(queues, func(a, b Queue) int { return cmp.Or(cmp.Compare(a.Broker, b.Broker), cmp.Compare(a.ID, b.ID)) })
	return queues, nil
}
