package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/halfbox/halfbox/internal/remoting"
)

// cluster checks name servers, brokers, topics and the brokers' settings.
func (r *report) cluster(ctx context.Context, c Cluster, times Times) {
	brokers := map[string]bool{} // masters
	for _, ns := range c.NameServers {
		addr := strings.TrimPrefix(ns, "http://")
		if !r.nameServer(ctx, addr, c) {
			continue
		}
		knows := 0
		for _, topic := range c.Topics {
			found, err := remoting.Route(ctx, addr, topic, c.Credentials)
			r.topic(topic, addr, found, err, c)
			for _, b := range found {
				brokers[b] = true
			}
			knows += len(found)
		}
		for _, group := range c.Groups {
			r.retryTopic(ctx, addr, "%RETRY%"+group, c.Credentials)
		}
		if c.DiscardedTopic != "" {
			r.discarded(ctx, addr, c)
		}
		// Also those that have no topic of ours yet.
		found, err := remoting.Masters(ctx, addr, c.Credentials)
		for _, b := range found {
			brokers[b] = true
		}
		if knows+len(found) == 0 { // one of several that knows none is of no help when the others are away
			r.bad("brokers of "+addr, cmp.Or(errorText(err), "the name server knows no broker"), "start a broker whose namesrvAddr names this name server")
		}
	}
	for _, addr := range slices.Sorted(maps.Keys(brokers)) {
		r.broker(ctx, addr, c, times)
	}
}

// discarded checks that the rescue can read the half messages that brokers have given up on.
func (r *report) discarded(ctx context.Context, ns string, c Cluster) {
	check := "topic " + c.DiscardedTopic
	queues, err := remoting.Queues(ctx, ns, c.DiscardedTopic, c.Credentials)
	if err != nil {
		r.bad(check, err.Error(), "check the name server "+ns)
		return
	}
	var halves int64
	for _, q := range queues {
		p, err := remoting.Pull(ctx, q.Addr, remoting.PullRequest{Group: c.RescueGroup, Topic: c.DiscardedTopic, Queue: q.ID, Max: 1}, c.Credentials)
		switch {
		case errors.Is(err, remoting.ErrNoTopic):
		case err != nil:
			r.bad(check, err.Error(), "let consumer group "+c.RescueGroup+" (rescue.group) read it: half messages that the broker gives up on cannot be rescued otherwise")
			return
		default:
			halves += p.Max - p.Min
		}
	}
	switch {
	case len(queues) == 0:
		r.ok(check, "not there: its first half message makes it")
	default:
		r.ok(check, "can be read; holds %d half messages of all groups", halves)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (r *report) retryTopic(ctx context.Context, ns, topic string, creds remoting.Credentials) {
	found, err := remoting.Route(ctx, ns, topic, creds)
	switch {
	case err != nil:
		r.bad("topic "+topic, err.Error(), "check the name server "+ns)
	case len(found) == 0:
		r.warn("topic "+topic, "not there yet", "create it before the first start: the first retry of a new group is 20 s late otherwise (mqadmin updateTopic -t '"+topic+"' -r 1 -w 1)")
	default:
		r.ok("topic "+topic, "on %s", strings.Join(found, ", "))
	}
}

func (r *report) nameServer(ctx context.Context, addr string, c Cluster) bool {
	_, err := remoting.Ask(ctx, addr, remoting.CodeRoute, map[string]string{"topic": "TBW102"}, c.Credentials)
	if err != nil {
		r.bad("name server "+addr, err.Error(), "start it, or correct rocketmq.name_servers")
		return false
	}
	r.ok("name server "+addr, "answers")
	return true
}

func (r *report) topic(topic, ns string, brokers []string, err error, c Cluster) {
	check := "topic " + topic
	create := fmt.Sprintf("mqadmin updateTopic -n %s -c CLUSTER -t %s", ns, topic)
	switch {
	case err != nil:
		r.bad(check, err.Error(), "check the name server "+ns)
	case len(brokers) == 0 && c.CreatesTopics:
		r.warn(check, "no broker has it yet", "halfbox serve makes it (rocketmq.create_topics); or create it: "+create)
	case len(brokers) == 0:
		r.bad(check, "no broker has it", "create it: "+create)
	default:
		r.ok(check, "on %s", strings.Join(brokers, ", "))
	}
}

// broker checks that a master is reachable from here at the address it advertises, and its transaction settings.
func (r *report) broker(ctx context.Context, addr string, c Cluster, times Times) {
	check := "broker " + addr
	a, err := remoting.Ask(ctx, addr, remoting.CodeBrokerConfig, nil, c.Credentials)
	if err != nil {
		host, _, _ := net.SplitHostPort(addr)
		r.bad(check, err.Error(), "clients must reach it at the address it advertises: check that it runs, and its brokerIP1 (now "+host+")")
		return
	}
	if err := a.Refused(); err != nil {
		r.bad(check, err.Error(), accessRemedy)
		return
	}
	r.permissions(ctx, check, addr, c)
	if a.Code == remoting.CodeNotSupported {
		r.ok(check, "answers; it does not tell its settings (halfbox's own broker: see its configuration)")
		return
	}
	if a.Code != remoting.CodeOK {
		r.bad(check, fmt.Sprintf("code %d: %s", a.Code, a.Remark), "look into the broker's log")
		return
	}
	r.settings(check, properties(a.Body), times)
}

const accessRemedy = "correct rocketmq.access_key and secret_key, or give that user Pub, Sub and Get on the topics and groups at the broker (mqadmin createAcl)"

// permissions asks a broker what the service asks it about topics and groups. Whether it may send and receive cannot be
// found out without doing it.
func (r *report) permissions(ctx context.Context, check, addr string, c Cluster) {
	for _, topic := range c.Topics {
		r.permission(ctx, check, addr, c, remoting.CodeMaxOffset, map[string]string{"topic": topic, "queueId": "0"})
		for _, group := range c.Groups {
			r.permission(ctx, check, addr, c, remoting.CodeConsumerOffset, map[string]string{"topic": topic, "queueId": "0", "consumerGroup": group})
		}
	}
}

func (r *report) permission(ctx context.Context, check, addr string, c Cluster, code int, ext map[string]string) {
	a, err := remoting.Ask(ctx, addr, code, ext, c.Credentials)
	if err == nil {
		err = a.Refused()
	}
	if err != nil {
		r.bad(check+": permissions", err.Error(), accessRemedy)
	}
}

// properties reads Java properties text.
func properties(text []byte) map[string]string {
	p := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			p[name] = value
		}
	}
	return p
}

// settings checks the order in which deadlines must follow one another (docs/guarantees.md).
func (r *report) settings(check string, p map[string]string, times Times) {
	ms := func(name string, otherwise time.Duration) time.Duration {
		n, err := strconv.ParseInt(p[name], 10, 64)
		if err != nil {
			return otherwise
		}
		return time.Duration(n) * time.Millisecond
	}
	timeout := ms("transactionTimeOut", 6*time.Second)
	interval := ms("transactionCheckInterval", 30*time.Second)
	batch := ms("transactionOpBatchInterval", 3*time.Second)
	checks, err := strconv.Atoi(p["transactionCheckMax"])
	if err != nil {
		checks = 15
	}
	total := time.Duration(checks) * interval
	problems := 0
	require := func(holds bool, detail, remedy string) {
		if !holds {
			problems++
			r.bad(check+": transactions", detail, remedy)
		}
	}
	require(times.Local < timeout, fmt.Sprintf("txmsg.local_timeout (%v) is not below transactionTimeOut (%v)", times.Local, timeout),
		"lower txmsg.local_timeout, or raise transactionTimeOut: checks would come while healthy transactions run")
	require(timeout <= times.Grace, fmt.Sprintf("transactionTimeOut (%v) is above checkback.grace (%v)", timeout, times.Grace),
		"raise checkback.grace: the first check would void transactions that are still running")
	require(times.Grace < total, fmt.Sprintf("checkback.grace (%v) is not below transactionCheckMax x transactionCheckInterval (%v)", times.Grace, total),
		"lower checkback.grace: the broker would give up before it has an answer")
	require(timeout > batch, fmt.Sprintf("transactionTimeOut (%v) is not above transactionOpBatchInterval (%v)", timeout, batch),
		"lower transactionOpBatchInterval: the broker would check committed messages again and deliver them twice")
	require(p["rejectTransactionMessage"] != "true", "rejectTransactionMessage=true", "set it to false: this broker takes no half messages")
	if problems == 0 {
		r.ok(check+": transactions", "first check after %v, then every %v, %d times", timeout, interval, checks)
	}
}
