package rocketmq

import (
	"fmt"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Credentials are a cluster's ACL credentials; empty when it asks for none.
type Credentials struct{ AccessKey, SecretKey string }

func (c Credentials) client() primitive.Credentials {
	return primitive.Credentials{AccessKey: c.AccessKey, SecretKey: c.SecretKey}
}

// ProducerConfig is what every producer needs.
type ProducerConfig struct {
	NameServers []string
	Credentials Credentials
	Group       string
	SendTimeout time.Duration
	// Selector chooses the queue of each request. The client's own by default: one queue after another.
	Selector producer.QueueSelector
	// Instance is from InstanceName; one is made when it is empty. The client's id ends in it.
	Instance string
}

// Options are the options every producer of the project has. The client's own retries are off: a retried send is a
// second message, and whoever sends decides about that.
func (c ProducerConfig) Options(purpose string) ([]producer.Option, error) {
	resolver, err := Resolver(c.NameServers)
	if err != nil {
		return nil, err
	}
	instance := c.Instance
	if instance == "" {
		instance = InstanceName(purpose)
	}
	opts := []producer.Option{
		producer.WithNsResolver(resolver),
		producer.WithCredentials(c.Credentials.client()),
		producer.WithGroupName(c.Group),
		producer.WithInstanceName(instance),
		producer.WithSendMsgTimeout(c.SendTimeout),
		producer.WithRetry(0),
	}
	if c.Selector != nil {
		opts = append(opts, producer.WithQueueSelector(c.Selector))
	}
	return opts, nil
}

// NewProducer starts a plain producer. Its group must not be one of transactional producers: the broker would ask
// it for outcomes it does not know.
func NewProducer(cfg ProducerConfig) (client.Producer, error) {
	opts, err := cfg.Options("producer")
	if err != nil {
		return nil, err
	}
	p, err := client.NewProducer(opts...)
	if err != nil {
		return nil, fmt.Errorf("RocketMQ producer %s: %w", cfg.Group, err)
	}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("RocketMQ producer %s: %w", cfg.Group, err)
	}
	return p, nil
}
