package rocketmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/outbox"
)

// routeAge is how long the queues of a topic are taken for known; the client asks as often.
const routeAge = 30 * time.Second

// Ordered is a Sink that sends the records of one PartitionKey to one queue. Together with a relay for which the sink
// is ordered, the messages of a key lie in their queue in the order of their versions. It is safe for concurrent use.
type Ordered struct {
	*Sink
	mu     sync.Mutex
	routes map[string]topicRoute
}

type topicRoute struct {
	queues []remoting.Queue
	asked  time.Time
}

var (
	_ outbox.Sink         = (*Ordered)(nil)
	_ outbox.Partitioner  = (*Ordered)(nil)
	_ outbox.BatchLimiter = (*Ordered)(nil)
	_ outbox.Prober       = (*Ordered)(nil)
)

// NewOrdered returns an Ordered. It talks to no server yet, so the cluster need not be there.
func NewOrdered(cfg Config) (*Ordered, error) {
	s, err := open(cfg, chosenQueue{})
	if err != nil {
		return nil, err
	}
	return &Ordered{Sink: s, routes: map[string]topicRoute{}}, nil
}

// Partitions names the queue of each record.
func (s *Ordered) Partitions(ctx context.Context, batch []outbox.Record) ([]string, error) {
	names := make([]string, len(batch))
	for i, r := range batch {
		q, err := s.queue(ctx, r)
		if err != nil {
			return nil, err
		}
		names[i] = queueName(q)
	}
	return names, nil
}

// Send sends batch to the queue of its records, as one request. Records of several queues are an error: the queues have
// changed since Partitions.
func (s *Ordered) Send(ctx context.Context, batch []outbox.Record) error {
	if len(batch) == 0 {
		return nil
	}
	var to remoting.Queue
	for i, r := range batch {
		q, err := s.queue(ctx, r)
		switch {
		case err != nil:
			return err
		case i == 0:
			to = q
		case queueName(q) != queueName(to):
			return fmt.Errorf("a batch for the queues %s and %s", queueName(to), queueName(q))
		}
	}
	err := s.send(ctx, batch, &primitive.MessageQueue{Topic: batch[0].Destination, BrokerName: to.Broker, QueueId: to.ID})
	if err != nil {
		s.forget(batch[0].Destination)
	}
	return err
}

func (s *Ordered) queue(ctx context.Context, r outbox.Record) (remoting.Queue, error) {
	queues, err := s.queues(ctx, r.Destination)
	if err != nil {
		return remoting.Queue{}, err
	}
	return queueOf(r.PartitionKey, queues), nil
}

// queues returns the queues of a topic, at most routeAge old.
func (s *Ordered) queues(ctx context.Context, topic string) ([]remoting.Queue, error) {
	s.mu.Lock()
	known, ok := s.routes[topic]
	s.mu.Unlock()
	if ok && time.Since(known.asked) < routeAge {
		return known.queues, nil
	}
	s.lastTopic.Store(topic)
	queues, err := remoting.FirstAnswer(ctx, s.cfg.NameServers, func(ctx context.Context, server string) ([]remoting.Queue, error) {
		return remoting.WriteQueues(ctx, server, topic, s.credentials())
	})
	if err != nil {
		return nil, outbox.Unreachable(err)
	}
	if len(queues) == 0 {
		return nil, s.noRoute(ctx, topic, errors.New("no queue can be written"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes[topic] = topicRoute{queues: queues, asked: time.Now()}
	return queues, nil
}

func (s *Ordered) forget(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.routes, topic)
}

// queueOf chooses the queue for a key by rendezvous hashing: the queue for which the hash of key and queue is highest.
// It depends on nothing but the key and the set of queues. A queue more takes over only the keys that are its own
// then, a queue less gives away only those it had; with a modulus nearly all keys would move.
func queueOf(key string, queues []remoting.Queue) remoting.Queue {
	return slices.MaxFunc(queues, func(a, b remoting.Queue) int {
		return cmp.Or(cmp.Compare(weight(key, a), weight(key, b)), cmp.Compare(a.Broker, b.Broker), cmp.Compare(a.ID, b.ID))
	})
}

func weight(key string, q remoting.Queue) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key + "\x00" + queueName(q))) // never fails
	// FNV leaves queues that differ in the last byte close together; this spreads them (the end of MurmurHash3).
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

func queueName(q remoting.Queue) string { return q.Broker + "-" + strconv.Itoa(q.ID) }

// chosenQueue sends each message to the queue it names.
type chosenQueue struct{}

// Select returns nil, which the client takes for a missing route, if it does not know the queue (yet).
func (chosenQueue) Select(msg *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	for _, q := range queues {
		if msg.Queue != nil && q.BrokerName == msg.Queue.BrokerName && q.QueueId == msg.Queue.QueueId {
			return q
		}
	}
	return nil
}
