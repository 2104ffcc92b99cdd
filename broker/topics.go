package broker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// validTopic follows RocketMQ's TopicValidator.
func validTopic(name string) bool {
	if name == "" || len(name) > maxTopicSize {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		allowed := r == '%' || r == '|' || r == '-' || r == '_' ||
			'0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		return !allowed
	})
}

// sendable tells whether clients may send to the topic.
func sendable(name string) bool {
	switch name {
	case topicHalf, topicOpHalf, topicDiscarded, topicSchedule, topicDefault:
		return false
	}
	return validTopic(name)
}

// oneQueue tells the topics that have one queue and exist whenever asked for:
// a new group's retry topic must have a route before its first retry, since
// clients look again only every 30 s.
func oneQueue(name string) bool {
	return name == topicDiscarded || strings.HasPrefix(name, retryPrefix) || strings.HasPrefix(name, deadPrefix)
}

// newTopicQueues is the number of queues a topic gets when a message creates it.
func (b *Broker) newTopicQueues(name string) int {
	if oneQueue(name) {
		return 1
	}
	return b.cfg.DefaultQueues
}

func (b *Broker) handleRoute(r *request) {
	name := r.cmd.Ext["topic"]
	if info := b.store.topic(name); info != nil {
		r.ok(nil, b.route(info))
		return
	}
	virtual := &topicInfo{Name: name, Read: b.newTopicQueues(name), Perm: permRead | permWrite}
	virtual.Write = virtual.Read
	switch {
	case validTopic(name) && oneQueue(name), name == topicDefault && !b.cfg.DisableTopicAutoCreate:
		r.ok(nil, b.route(virtual))
	case b.cfg.DisableTopicAutoCreate, !sendable(name):
		r.answer(respTopicNotExist, fmt.Sprintf("no route info of topic %q", name), nil, nil)
	default:
		b.createTopic(r, virtual, func(info *topicInfo) { r.ok(nil, b.route(info)) })
	}
}

// createTopic creates the topic unless it exists by now, then calls then.
func (b *Broker) createTopic(r *request, want *topicInfo, then func(*topicInfo)) {
	var info *topicInfo
	b.store.submit(&write{
		op: "topic",
		apply: func(tx *writeTx) (err error) {
			info, err = tx.ensureTopic(want.Name, want.Read)
			return err
		},
		done: func(err error) {
			if err != nil {
				r.fail(err)
				return
			}
			then(info)
		},
	})
}

type routeQueueData struct {
	BrokerName     string `json:"brokerName"`
	ReadQueueNums  int    `json:"readQueueNums"`
	WriteQueueNums int    `json:"writeQueueNums"`
	Perm           int    `json:"perm"`
	TopicSysFlag   int    `json:"topicSysFlag"`
	TopicSynFlag   int    `json:"topicSynFlag"` // the same by its old name
}

type routeBrokerData struct {
	Cluster     string            `json:"cluster"`
	BrokerName  string            `json:"brokerName"`
	BrokerAddrs map[string]string `json:"brokerAddrs"`
}

func (b *Broker) brokerData() routeBrokerData {
	return routeBrokerData{b.cfg.ClusterName, b.cfg.BrokerName, map[string]string{"0": b.advertise}}
}

func (b *Broker) route(info *topicInfo) []byte {
	return mustJSON(map[string]any{
		"queueDatas": []routeQueueData{{
			BrokerName: b.cfg.BrokerName, ReadQueueNums: info.Read, WriteQueueNums: info.Write, Perm: info.Perm,
		}},
		"brokerDatas":       []routeBrokerData{b.brokerData()},
		"filterServerTable": struct{}{},
	})
}

// mustJSON encodes values made of strings and numbers only, which cannot fail.
func mustJSON(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return body
}

func (b *Broker) handleClusterInfo(r *request) {
	r.ok(nil, mustJSON(map[string]any{
		"brokerAddrTable":  map[string]any{b.cfg.BrokerName: b.brokerData()},
		"clusterAddrTable": map[string][]string{b.cfg.ClusterName: {b.cfg.BrokerName}},
	}))
}

func (b *Broker) handleAllTopics(r *request) {
	names := []string{}
	for _, info := range b.store.allTopics() {
		names = append(names, info.Name)
	}
	slices.Sort(names)
	r.ok(nil, mustJSON(map[string]any{"topicList": names, "brokerAddr": b.advertise}))
}

func (b *Broker) handleCreateTopic(r *request) {
	f := r.fields()
	name := f.need("topic")
	read, writeNums := f.num32("readQueueNums", b.cfg.DefaultQueues), f.num32("writeQueueNums", b.cfg.DefaultQueues)
	perm := f.num32("perm", permRead|permWrite)
	switch {
	case f.err != nil:
		r.fail(f.err)
		return
	case !sendable(name):
		r.answer(respSystemError, fmt.Sprintf("topic name %q is not allowed", name), nil, nil)
		return
	case read < 1 || read > maxQueues || writeNums < 1 || writeNums > maxQueues:
		r.answer(respSystemError, fmt.Sprintf("readQueueNums %d and writeQueueNums %d must be within 1 and %d", read, writeNums, maxQueues), nil, nil)
		return
	}
	b.store.submit(&write{
		op: "topic",
		apply: func(tx *writeTx) error {
			_, err := tx.putTopic(name, read, writeNums, perm)
			return err
		},
		done: func(err error) {
			if err != nil {
				r.fail(err)
				return
			}
			r.ok(nil, nil)
		},
	})
}
