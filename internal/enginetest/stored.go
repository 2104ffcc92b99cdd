package enginetest

import (
	"context"

	"github.com/halfbox/halfbox/internal/remoting"
)

// Stored is a message and the queue that has it.
type Stored struct {
	remoting.Message
	Queue remoting.Queue
}

// ReadTopic returns every message of a topic, queue by queue in their order; none when the topic is not known. It does
// not acknowledge them.
func ReadTopic(ctx context.Context, nameServer, topic string) (all []Stored, err error) {
	queues, err := remoting.Queues(ctx, nameServer, topic, remoting.Credentials{})
	if err != nil {
		return nil, err
	}
	for _, q := range queues {
		for next := int64(0); ; {
			p, err := remoting.Pull(ctx, q.Addr, remoting.PullRequest{
				Group: remoting.ToolsGroup, Topic: topic, Queue: q.ID, Offset: next, Max: 32,
			}, remoting.Credentials{})
			if err != nil {
				return nil, err
			}
			for _, m := range p.Messages {
				all = append(all, Stored{m, q})
			}
			if p.Next <= next {
				break
			}
			next = p.Next
		}
	}
	return all, nil
}
