package rocketmq

import (
	"slices"
	"strconv"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// generation is the instance name of the nth client that a Consumer makes.
func generation(name string, n int) string { return name + "~" + strconv.Itoa(n) }

// splitGeneration takes a client id ("ip@instance") apart; n is 0 for one that has no generation.
func splitGeneration(clientID string) (name string, n int) {
	if name, number, found := strings.Cut(clientID, "~"); found {
		if n, err := strconv.Atoi(number); err == nil {
			return name, n
		}
	}
	return clientID, 0
}

// allocate shares the queues of a topic as the client does by default, but none to a client that has a successor. A
// heartbeat that a broker handles after it has closed the connection, as one that comes back under load does, makes it
// take a client that has ended for a member of its group, for two minutes; that member's queues would stand still. Every
// consumer of the group leaves out the same ones, so all come to one result.
func allocate(group, clientID string, queues []*primitive.MessageQueue, members []string) []*primitive.MessageQueue {
	members = present(members)
	if !slices.Contains(members, clientID) {
		return nil // it is ending itself
	}
	return consumer.AllocateByAveragely(group, clientID, queues, members)
}

// present leaves out members that have a successor among members, and repeated ones.
func present(members []string) []string {
	newest := map[string]int{}
	for _, m := range members {
		name, n := splitGeneration(m)
		newest[name] = max(newest[name], n)
	}
	var out []string
	for _, m := range members {
		if name, n := splitGeneration(m); n == newest[name] && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}
