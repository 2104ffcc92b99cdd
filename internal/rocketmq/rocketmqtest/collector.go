package rocketmqtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

// Collect consumes a topic from its beginning and returns a function that tells which bodies have arrived under a
// message id. The topic must exist.
func Collect(t testing.TB, nameServers []string, topic string) func(msgID string) ([][]byte, error) {
	t.Helper()
	var mu sync.Mutex
	bodies := map[string][][]byte{}
	c, err := rocketmq.NewConsumer(rocketmq.ConsumerConfig{
		NameServers: nameServers, Topic: topic, Group: "collect-" + uuid.NewString(),
		Handle: func(_ context.Context, m rocketmq.Message) error {
			mu.Lock()
			defer mu.Unlock()
			bodies[m.MsgID] = append(bodies[m.MsgID], m.Body)
			return nil
		},
	})
	require.NoError(t, err)
	c.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.Stop(ctx); err != nil { // it is tested elsewhere
			t.Log(err)
		}
	})
	return func(msgID string) ([][]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		return bodies[msgID], nil
	}
}
