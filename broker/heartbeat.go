package broker

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// heartbeatBody is what clients send every 30 s and at once when they start.
type heartbeatBody struct {
	ClientID  string `json:"clientID"`
	Producers []struct {
		GroupName string `json:"groupName"`
	} `json:"producerDataSet"`
	Consumers []struct {
		GroupName     string `json:"groupName"`
		Subscriptions []struct {
			Topic      string `json:"topic"`
			SubString  string `json:"subString"`
			Expression string `json:"expressionType"`
		} `json:"subscriptionDataSet"`
	} `json:"consumerDataSet"`
}

func (b *Broker) handleHeartbeat(r *request) {
	var hb heartbeatBody
	if err := json.Unmarshal(r.cmd.Body, &hb); err != nil {
		r.protocolError(fmt.Errorf("heartbeat: %w", err))
		return
	}
	if hb.ClientID == "" {
		r.answer(respSystemError, "heartbeat without clientID", nil, nil)
		return
	}
	for _, p := range hb.Producers {
		b.groups.addProducer(p.GroupName, hb.ClientID, r.c)
	}
	for _, c := range hb.Consumers {
		subs := make(map[string]subscription, len(c.Subscriptions))
		for _, s := range c.Subscriptions {
			subs[s.Topic] = parseSubscription(s.SubString, s.Expression)
		}
		notify := b.groups.addConsumer(c.GroupName, hb.ClientID, r.c, subs)
		if !r.c.early.Load() {
			// It rebalances by itself right after this, its first heartbeat.
			notify = slices.DeleteFunc(notify, func(other *conn) bool { return other == r.c })
		}
		// The answer goes first: a client takes itself for registered then.
		defer b.notifyConsumers(c.GroupName, notify)
	}
	if r.c.closed.Load() {
		b.forget(r.c) // the connection ended meanwhile, and may have been forgotten before
	}
	r.ok(nil, nil)
}

func (b *Broker) handleUnregister(r *request) {
	ext := r.cmd.Ext
	if group := ext["producerGroup"]; group != "" {
		b.groups.removeProducer(group, r.c)
	}
	if group := ext["consumerGroup"]; group != "" {
		b.notifyConsumers(group, b.groups.removeConsumer(group, ext["clientID"], r.c))
	}
	r.ok(nil, nil)
}

// notifyConsumers makes clients look at their group again and rebalance at once.
func (b *Broker) notifyConsumers(group string, conns []*conn) {
	for _, c := range conns {
		c.send(&command{
			Code: codeNotifyConsumersChanged, Flag: flagOneWay,
			Ext: map[string]string{"consumerGroup": group},
		})
	}
}

// forget drops what belonged to a connection that ended.
func (b *Broker) forget(c *conn) {
	notify := b.groups.remove(c)
	b.parked.forget(c)
	if b.stopping.Load() {
		return
	}
	for group, conns := range notify {
		b.notifyConsumers(group, conns)
	}
}

// unregisteredWait is longer than the 3 s a client waits for its group's ids.
const unregisteredWait = 5 * time.Second

// handleConsumerList names the clients of a group. A consumer that connected
// anew, after a restart of the broker, asks before its next heartbeat makes it
// a member, and would give all its queues up at a list without itself, even an
// empty one or an error. Its question is left open until it has stopped waiting:
// then it keeps what it has.
func (b *Broker) handleConsumerList(r *request) {
	group := r.cmd.Ext["consumerGroup"]
	wait := unregisteredWait
	if b.groups.isConsumer(group, r.c) {
		wait = 0
	} else {
		r.c.early.Store(true)
	}
	b.after(wait, func() {
		r.ok(nil, mustJSON(map[string]any{"consumerIdList": b.groups.consumerIDs(group)}))
	})
}

// handleProducerConnections names the connections that can be asked about a
// producer group's halves.
func (b *Broker) handleProducerConnections(r *request) {
	type connection struct {
		ClientID   string `json:"clientId"`
		ClientAddr string `json:"clientAddr"`
		Language   string `json:"language"`
		Version    int    `json:"version"`
	}
	group := r.cmd.Ext["producerGroup"]
	connections := []connection{}
	for _, m := range b.groups.producerMembers(group) {
		connections = append(connections, connection{m.clientID, m.c.remote, "GO", protocolVersion})
	}
	if len(connections) == 0 {
		r.answer(respSystemError, fmt.Sprintf("the producer group[%s] not exist", group), nil, nil)
		return
	}
	r.ok(nil, mustJSON(map[string]any{"connectionSet": connections}))
}
