package app

import (
	"time"

	"go.uber.org/zap"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

// Instruments let a measurement look at the service from inside. Each may be nil.
type Instruments struct {
	// SQL are the hooks of every pool of a database, "order" or "points".
	SQL func(database string) database.Hooks
	// Publishers are strategies beside those of the service.
	Publishers map[halfbox.Delivery]func(PublisherParts) order.Publisher
	// Publisher wraps every strategy.
	Publisher func(order.Publisher) order.Publisher
	// Delivered is called when the points consumer is done with a message.
	Delivered func(m rocketmq.Message, received, done time.Time)
}

// PublisherParts are what a further strategy is made of.
type PublisherParts struct {
	DB     *database.DB
	Sink   outbox.Sink
	Topic  string
	Logger *zap.Logger
}

// publishers adds the further strategies to the service's own, and wraps all of them.
func (a *App) publishers(own map[halfbox.Delivery]order.Publisher) (map[halfbox.Delivery]order.Publisher, error) {
	for delivery, open := range a.inside.Publishers {
		sink, err := a.openSink(string(delivery))
		if err != nil {
			return nil, err
		}
		own[delivery] = open(PublisherParts{DB: a.orderDB, Sink: sink, Topic: a.cfg.RocketMQ.OrderTopic, Logger: a.log.Named(string(delivery))})
	}
	if a.inside.Publisher != nil {
		for delivery, p := range own {
			own[delivery] = a.inside.Publisher(p)
		}
	}
	return own, nil
}
