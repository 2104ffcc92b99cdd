package rocketmq

import (
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"
)

func TestQueuesAreSharedAmongThosePresent(t *testing.T) {
	t.Parallel()
	queues := make([]*primitive.MessageQueue, 4)
	for i := range queues {
		queues[i] = &primitive.MessageQueue{Topic: "t", QueueId: i}
	}
	members := []string{"1.2.3.4@a~1", "1.2.3.4@a~10", "1.2.3.4@a~9", "1.2.3.4@b", "1.2.3.4@b", "1.2.3.4@c~x"}
	require.Equal(t, []string{"1.2.3.4@a~10", "1.2.3.4@b", "1.2.3.4@c~x"}, present(members))
	require.Equal(t, queues[:2], allocate("g", "1.2.3.4@a~10", queues, members))
	require.Equal(t, queues[2:3], allocate("g", "1.2.3.4@b", queues, members))
	require.Equal(t, queues[3:], allocate("g", "1.2.3.4@c~x", queues, members))
	require.Empty(t, allocate("g", "1.2.3.4@a~9", queues, members), "it has a successor")
	require.Empty(t, allocate("g", "1.2.3.4@d~1", queues, members), "the group does not know it yet")
}
