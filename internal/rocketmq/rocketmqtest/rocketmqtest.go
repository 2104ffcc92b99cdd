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
		// Timers that sleep before they look whether the client is done, 10 s and up to a day
		// (apache/rocketmq-client-go#1147).
		goleak.IgnoreAnyFunction(client + "internal.(*rmqClient).Start.func1"),
		goleak.IgnoreAnyFunction(client + "internal.(*rmqClient).Start.func1.1"),
		goleak.IgnoreAnyFunction(client + "internal.(*rmqClient).Start.func1.3"),
		goleak.IgnoreAnyFunction(client + "internal.(*rmqClient).Start.func1.4"),
		goleak.IgnoreAnyFunction(client + "internal.(*rmqClient).Start.func1.5"),
		goleak.IgnoreAnyFunction(client + "consumer.(*statsItemSet).init.func1"),
		goleak.IgnoreAnyFunction(client + "consumer.(*pushConsumer).Start.func1.2"),
		// The reader of a name server connection ends with the read timeout, 120 s.
		goleak.IgnoreAnyFunction(client + "internal/remote.(*remotingClient).receiveResponse"),
		// A cache of the client's consumer package, made when that package is loaded.
		goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"),
	}
}
