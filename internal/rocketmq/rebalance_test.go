package rocketmq

import (
	"context"
	"testing"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"
)

// The client of the release that go.mod names is made in the way that is relied on.
func TestClientBehindAPushConsumer(t *testing.T) {
	t.Parallel()
	push, err := client.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{"127.0.0.1:9876"})),
		consumer.WithGroupName("g"), consumer.WithInstance(InstanceName("test")),
	)
	require.NoError(t, err)
	require.NoError(t, push.Subscribe("t", consumer.MessageSelector{}, func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		return consumer.ConsumeSuccess, nil
	}))
	r, ok := behind(push)
	require.True(t, ok)
	r.RebalanceImmediately() // of none: it has not started

	_, ok = behind(nil)
	require.False(t, ok)
	_, ok = behind(&other{})
	require.False(t, ok)
}

// other is made in another way.
type other struct{ client.PushConsumer }
