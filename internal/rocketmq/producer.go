package rocketmq

import (
	"fmt"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// ProducerOptions are the options every producer of the project has. The client's own retries are off: a retried
// send is a second message, and whoever sends decides about that.
func ProducerOptions(nameServers []string, group, purpose string, sendTimeout time.Duration) ([]producer.Option, error) {
	resolver, err := Resolver(nameServers)
	if err != nil {
		return nil, err
	}
	return []producer.Option{
		producer.WithNsResolver(resolver),
		producer.WithGroupName(group),
		producer.WithInstanceName(InstanceName(purpose)),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithRetry(0),
	}, nil
}

// NewProducer starts a plain producer. Its group must not be one of transactional producers: the broker would ask
// it for outcomes it does not know.
func NewProducer(nameServers []string, group string, sendTimeout time.Duration) (client.Producer, error) {
	opts, err := ProducerOptions(nameServers, group, "producer", sendTimeout)
	if err != nil {
		return nil, err
	}
	p, err := client.NewProducer(opts...)
	if err != nil {
		return nil, fmt.Errorf("RocketMQ producer %s: %w", group, err)
	}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("RocketMQ producer %s: %w", group, err)
	}
	return p, nil
}
