package broker

import (
	"bytes"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// Stats is a snapshot of the broker's state.
type Stats struct {
	OpenHalves  int // undecided half messages
	Connections int
	ParkedPulls int
	// ProducerGroups and ConsumerGroups are the connected ones, sorted.
	ProducerGroups, ConsumerGroups []string
	// Topics are the existing ones, sorted by name.
	Topics []TopicStats
}

// TopicStats describes one topic.
type TopicStats struct {
	Name   string
	Queues []QueueStats // index = queue id
}

// QueueStats are the offsets [Min, Max) of the messages present in a queue.
type QueueStats struct{ Min, Max int64 }

// Messages is the number of messages present in the topic.
func (t TopicStats) Messages() int64 {
	var n int64
	for _, q := range t.Queues {
		n += q.Max - q.Min
	}
	return n
}

// Stats returns a snapshot. Its parts are not of one instant.
func (b *Broker) Stats() Stats {
	st := Stats{OpenHalves: b.halves.count(), Connections: len(b.connections())}
	b.parked.mu.Lock()
	st.ParkedPulls = b.parked.count
	b.parked.mu.Unlock()
	b.groups.mu.Lock()
	for name := range b.groups.producers {
		st.ProducerGroups = append(st.ProducerGroups, name)
	}
	for name := range b.groups.consumers {
		st.ConsumerGroups = append(st.ConsumerGroups, name)
	}
	b.groups.mu.Unlock()
	slices.Sort(st.ProducerGroups)
	slices.Sort(st.ConsumerGroups)
	for _, info := range b.store.allTopics() {
		st.Topics = append(st.Topics, b.topicStats(info))
	}
	slices.SortFunc(st.Topics, func(x, y TopicStats) int { return bytes.Compare([]byte(x.Name), []byte(y.Name)) })
	return st
}

func (b *Broker) topicStats(info *topicInfo) TopicStats {
	ts := TopicStats{Name: info.Name}
	for q := range info.queues() {
		r := b.store.queueRange(info.key(q))
		ts.Queues = append(ts.Queues, QueueStats{r.min, r.max})
	}
	return ts
}

// OpenHalves is the number of undecided half messages.
func (b *Broker) OpenHalves() int { return b.halves.count() }

// DiscardedHalves is the number of half messages that were given up and could
// still be ended by a late verdict.
func (b *Broker) DiscardedHalves() (n int) {
	_ = b.store.view(func(tx *bbolt.Tx) error { // it fails on a stopped broker only
		n = tx.Bucket([]byte("discarded")).Stats().KeyN
		return nil
	})
	return n
}

// Topic returns the topic's queues; false when it does not exist.
func (b *Broker) Topic(name string) (TopicStats, bool) {
	info := b.store.topic(name)
	if info == nil {
		return TopicStats{}, false
	}
	return b.topicStats(info), true
}

// MaxOffset is the offset after the last message of a queue; 0 when the queue
// does not exist.
func (b *Broker) MaxOffset(topic string, queue int) int64 {
	info := b.store.topic(topic)
	if info == nil || queue < 0 {
		return 0
	}
	return b.store.queueRange(info.key(queue)).max
}

// ConsumerOffset is what a group committed for a queue; false when it never did.
func (b *Broker) ConsumerOffset(group, topic string, queue int) (int64, bool) {
	return b.offsets.get(group, topic, queue)
}

// Message is a stored message. The body is decompressed.
type Message struct {
	Topic          string
	QueueID        int
	QueueOffset    int64
	PhysicalOffset int64
	OffsetMsgID    string // the broker's id: store host and physical offset
	UniqKey        string // the client's id
	Tags           string
	Keys           string
	Properties     map[string]string
	Body           []byte
	BornTime       time.Time
	StoreTime      time.Time
	ReconsumeTimes int
}

func (b *Broker) export(m *message) (Message, error) {
	out := Message{
		Topic: m.topic, QueueID: m.queueID, QueueOffset: m.queueOffset, PhysicalOffset: m.physicalOffset,
		OffsetMsgID: messageID(b.storeHost, m.physicalOffset), UniqKey: m.props.value(propUniqKey),
		Tags: m.props.value(propTags), Keys: m.props.value(propKeys), Properties: m.props.toMap(), Body: m.body,
		BornTime: time.UnixMilli(m.bornTime), StoreTime: time.UnixMilli(m.storeTime), ReconsumeTimes: int(m.reconsumeTimes),
	}
	if m.sysFlag&sysFlagCompressed == 0 {
		return out, nil
	}
	z, err := zlib.NewReader(bytes.NewReader(m.body))
	if err != nil {
		return out, fmt.Errorf("decompress message %s: %w", out.OffsetMsgID, err)
	}
	out.Body, err = io.ReadAll(io.LimitReader(z, 256<<20))
	if err != nil {
		return out, fmt.Errorf("decompress message %s: %w", out.OffsetMsgID, err)
	}
	return out, nil
}

// Messages reads up to limit messages of a queue from an offset on. A topic
// that does not exist has none. It works until Stop.
func (b *Broker) Messages(topic string, queue int, from int64, limit int) ([]Message, error) {
	info := b.store.topic(topic)
	if info == nil || queue < 0 || limit <= 0 {
		return nil, nil
	}
	res, err := b.store.read(info.key(queue), from, limit, 256<<20, nil)
	if err != nil {
		return nil, fmt.Errorf("broker: read %s/%d: %w", topic, queue, err)
	}
	var out []Message
	for rest := res.body; len(rest) > 0; {
		size := int((&reader{b: rest}).u32())
		m, err := decodeMessage(rest[:min(size, len(rest))])
		if err != nil {
			return out, err
		}
		rest = rest[size:]
		msg, err := b.export(m)
		if err != nil {
			return out, err
		}
		out = append(out, msg)
	}
	return out, nil
}

// AllMessages reads every message of a topic, queue by queue.
func (b *Broker) AllMessages(topic string) ([]Message, error) {
	ts, _ := b.Topic(topic)
	var all []Message
	for q, r := range ts.Queues {
		for from := r.Min; from < r.Max; {
			msgs, err := b.Messages(topic, q, from, 1000)
			if err != nil {
				return all, err
			}
			if len(msgs) == 0 {
				break
			}
			all = append(all, msgs...)
			from = msgs[len(msgs)-1].QueueOffset + 1
		}
	}
	return all, nil
}

// FindMessages returns up to 64 messages of a topic whose UNIQ_KEY or one of
// whose KEYS is key, in store order. It scans the topic's index: milliseconds
// for a hundred thousand messages.
func (b *Broker) FindMessages(topic, key string) ([]Message, error) {
	info := b.store.topic(topic)
	if info == nil {
		return nil, nil
	}
	found, err := b.store.findByKey(info, key, 64)
	if err != nil {
		return nil, fmt.Errorf("broker: find %q in %s: %w", key, topic, err)
	}
	out := make([]Message, 0, len(found))
	for _, m := range found {
		msg, err := b.export(m)
		if err != nil {
			return out, err
		}
		out = append(out, msg)
	}
	return out, nil
}

// HasProducer tells whether a producer of the group is connected and can be
// asked about its halves. Clients register within a second of their first send.
func (b *Broker) HasProducer(group string) bool {
	ok, _ := b.groups.watch(hasProducer(group))
	return ok
}

// HasConsumer tells whether a consumer of the group is connected.
func (b *Broker) HasConsumer(group string) bool {
	ok, _ := b.groups.watch(hasConsumer(group))
	return ok
}

func hasProducer(group string) func(*groups) bool {
	return func(g *groups) bool { return g.producers[group] != nil }
}

func hasConsumer(group string) func(*groups) bool {
	return func(g *groups) bool { return g.consumers[group] != nil }
}

// WaitProducer waits until HasProducer(group).
func (b *Broker) WaitProducer(ctx context.Context, group string) error {
	return b.waitGroup(ctx, hasProducer(group), "producer", group)
}

// WaitConsumer waits until HasConsumer(group).
func (b *Broker) WaitConsumer(ctx context.Context, group string) error {
	return b.waitGroup(ctx, hasConsumer(group), "consumer", group)
}

func (b *Broker) waitGroup(ctx context.Context, cond func(*groups) bool, kind, group string) error {
	for {
		ok, changed := b.groups.watch(cond)
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-b.stop:
			return ErrStopped
		case <-ctx.Done():
			return fmt.Errorf("broker: waiting for %s group %s: %w", kind, group, ctx.Err())
		}
	}
}
