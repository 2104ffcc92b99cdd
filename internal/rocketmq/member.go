package rocketmq

import (
	"context"
	"sync/atomic"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// joiningLooks is how often a client looks at its group when it joins: at its start and when the broker tells it of its
// own joining, each time for its topic and for its retry topic.
const joiningLooks = 4

// joiningGrace is how long they may take.
const joiningGrace = 2 * time.Second

// member is a client as a member of its group.
type member struct {
	client.PushConsumer
	looks  atomic.Int32
	joined chan struct{}
}

func newMember() *member { return &member{joined: make(chan struct{})} }

// allocate is what the client calls each time that it has looked who is in its group.
func (m *member) allocate(group, clientID string, queues []*primitive.MessageQueue, members []string) []*primitive.MessageQueue {
	if m.looks.Add(1) == joiningLooks {
		close(m.joined)
	}
	return allocate(group, clientID, queues, members)
}

// settle waits until the client has looked at its group as often as a new one does. It looks in goroutines that its
// Shutdown does not wait for: what they ask then opens a connection that nobody closes.
func (m *member) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, joiningGrace)
	defer cancel()
	select {
	case <-m.joined:
	case <-ctx.Done():
	}
}
