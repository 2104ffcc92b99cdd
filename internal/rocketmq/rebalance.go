package rocketmq

import (
	"reflect"
	"unsafe"

	client "github.com/apache/rocketmq-client-go/v2"
)

// rebalancer is the client behind a push consumer.
type rebalancer interface {
	// RebalanceImmediately makes its consumers look at their groups. It is one at a time: whatever else does, at the
	// broker's notice or in turn, has ended before.
	RebalanceImmediately()
}

// behind returns the client behind a push consumer. It keeps that to itself, but its Shutdown does not wait for a
// goroutine that looks at the group just then: what that one asks opens a connection that nobody closes, and reads a flag
// that Shutdown writes. It returns false for one that is made in another way than the release that go.mod names.
func behind(push client.PushConsumer) (rebalancer, bool) {
	v := reflect.ValueOf(push)
	for _, field := range []string{"defaultConsumer", "client"} {
		if v = reflect.Indirect(v); v.Kind() != reflect.Struct {
			return nil, false
		}
		if v = v.FieldByName(field); !v.IsValid() {
			return nil, false
		}
	}
	if !v.CanAddr() {
		return nil, false
	}
	r, ok := reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem().Interface().(rebalancer)
	return r, ok
}
