package rocketmq

import (
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
	"go.uber.org/zap"
)

// The client's process-wide network timeouts. Dialling holds a lock that every send of the client needs, so one
// broker that swallows packets would stall them all for the default of 15 s.
const (
	dialTimeout  = 2 * time.Second
	readTimeout  = 120 * time.Second
	writeTimeout = 5 * time.Second
)

// Configure sets what the client keeps in process-wide variables: its logger, the handler of the panics it
// recovers, and its network timeouts. Call it once in main (or TestMain), before any client is made; it is not
// safe for concurrent use, because the client's variables are not.
func Configure(log *zap.Logger) error {
	rlog.SetLogger(clientLog{log})
	primitive.DefaultPanicHandler = func(v any) { log.Error("RocketMQ client recovered from a panic", zap.Any("panic", v)) }
	// The timeouts are reachable only through an option of a new client. This one is never started.
	_, err := producer.NewDefaultProducer(
		producer.WithInstanceName(InstanceName("configure")),
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{"127.0.0.1:9876"})),
		producer.WithRemotingTimeout(dialTimeout, readTimeout, writeTimeout),
	)
	if err != nil {
		return fmt.Errorf("configure the RocketMQ client: %w", err)
	}
	return nil
}
