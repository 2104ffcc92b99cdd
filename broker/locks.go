package broker

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// lockExpiry is how long a queue lock lasts unless renewed (RocketMQ:
// RebalanceLockManager, 60 s). Clients renew every 20 s.
const lockExpiry = 60 * time.Second

// queueLocks lets one client of a group consume a queue in order.
type queueLocks struct {
	mu    sync.Mutex
	locks map[lockKey]queueLock
}

type lockKey struct {
	group string
	mq    messageQueue
}

type queueLock struct {
	clientID string
	until    time.Time
}

type messageQueue struct {
	Topic      string `json:"topic"`
	BrokerName string `json:"brokerName"`
	QueueID    int    `json:"queueId"`
}

type lockBody struct {
	Group    string         `json:"consumerGroup"`
	ClientID string         `json:"clientId"`
	Queues   []messageQueue `json:"mqSet"`
}

func newQueueLocks() *queueLocks { return &queueLocks{locks: make(map[lockKey]queueLock)} }

// lock returns the queues the client holds now.
func (l *queueLocks) lock(body lockBody, now time.Time) []messageQueue {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, held := range l.locks {
		if !now.Before(held.until) {
			delete(l.locks, key)
		}
	}
	got := []messageQueue{}
	for _, mq := range body.Queues {
		key := lockKey{body.Group, mq}
		if held, ok := l.locks[key]; ok && held.clientID != body.ClientID {
			continue
		}
		l.locks[key] = queueLock{body.ClientID, now.Add(lockExpiry)}
		got = append(got, mq)
	}
	return got
}

func (l *queueLocks) unlock(body lockBody) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, mq := range body.Queues {
		key := lockKey{body.Group, mq}
		if l.locks[key].clientID == body.ClientID {
			delete(l.locks, key)
		}
	}
}

func (b *Broker) lockBody(r *request) (lockBody, bool) {
	var body lockBody
	if err := json.Unmarshal(r.cmd.Body, &body); err != nil {
		r.protocolError(fmt.Errorf("lock request: %w", err))
		return body, false
	}
	return body, true
}

func (b *Broker) handleLock(r *request) {
	if body, ok := b.lockBody(r); ok {
		got := b.locks.lock(body, b.cfg.Hooks.Now())
		r.ok(nil, mustJSON(map[string]any{"lockOKMQSet": got}))
	}
}

func (b *Broker) handleUnlock(r *request) {
	if body, ok := b.lockBody(r); ok {
		b.locks.unlock(body)
		r.ok(nil, nil)
	}
}
