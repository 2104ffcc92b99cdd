package broker_test

import (
	"os"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/rlog"
	"go.uber.org/goleak"
)

// TestMain silences the client's logger, which is a process global, and looks
// for goroutines that outlive the tests. The client leaves some behind by
// design of its own; each is named with the reason.
func TestMain(m *testing.M) {
	rlog.SetLogLevel("fatal") // it logs every rollback and every closed connection at error
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(clientLeaks()...); err != nil {
			_, _ = os.Stderr.WriteString("leaked goroutines: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

func clientLeaks() []goleak.Option {
	const client = "github.com/apache/rocketmq-client-go/v2/"
	return []goleak.Option{
		// The loop of a transaction producer reads a channel that is never closed.
		goleak.IgnoreAnyFunction(client + "producer.(*transactionProducer).checkTransactionState"),
		// Timers of rmqClient.Start and of consumers sleep before they look at
		// done, and ticker loops run to their next tick.
		goleak.IgnoreAnyFunction(client + "primitive.WithRecover"),
		goleak.IgnoreAnyFunction(client + "consumer.(*statsItemSet).init.func1"),
		// A rebalance in flight waits out its 3 s per request.
		goleak.IgnoreAnyFunction(client + "internal.(*rmqClient).RebalanceImmediately"),
		// A pull in flight waits out its 30 s: a closed connection does not fail it.
		goleak.IgnoreAnyFunction(client + "consumer.(*pushConsumer).pullMessage"),
		// The transaction cache of package internal, one per process.
		goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"),
	}
}
