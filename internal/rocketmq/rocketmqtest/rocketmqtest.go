// Package rocketmqtest runs the tests of packages that use the RocketMQ client.
package rocketmqtest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

// Main configures the client, runs the tests and fails when they leave a goroutine behind that is not one of the
// client's known leaks. It does not return.
func Main(m *testing.M) {
	if err := rocketmq.Configure(zap.NewNop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, knownLeaks()...)
}

func knownLeaks() []goleak.Option {
	const client = "github.com/apache/rocketmq-client-go/v2/"
	return []goleak.Option{
		// The check loop of a transaction producer ranges over a channel that is never closed.
		goleak.IgnoreAnyFunction(client + "producer.(*transactionProducer).checkTransactionState"),
		// Timers and loops of clients and consumers look whether the client is done only at their next tick, which is
		// 10 s away at least and up to a day (apache/rocketmq-client-go#1147).
		goleak.IgnoreAnyFunction(client + "primitive.WithRecover"),
		// A rebalance under way waits out its request.
		goleak.IgnoreAnyFunction(client + "internal.(*rmqClient).RebalanceImmediately"),
		// A pull that the broker has parked goes on waiting for its answer, up to 30 s, on a closed connection.
		goleak.IgnoreAnyFunction(client + "consumer.(*pushConsumer).pullMessage"),
		goleak.IgnoreAnyFunction(client + "consumer.(*defaultPullConsumer).pullMessage"),
		// The reader of a name server connection ends with the read timeout, 120 s.
		goleak.IgnoreAnyFunction(client + "internal/remote.(*remotingClient).receiveResponse"),
		// A cache of the client's consumer package, made when that package is loaded.
		goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"),
	}
}
