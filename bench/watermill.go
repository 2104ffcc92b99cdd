package main

import (
	"context"
	stdsql "database/sql"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// mill is watermill's forwarder: events go into watermill-sql's table within the order's transaction, and from there
// to a publisher. Everything it does not have to be told has its default, except for the batch size, the poll
// interval and the deadline of an acknowledgement, which are the same for every peer.
type mill struct {
	site
	schema  sql.SchemaAdapter
	offsets sql.OffsetsAdapter
	group   string
}

// forwarderTopic is part of the table's name.
const forwarderTopic = "events"

func newWatermillDefault(s site) (peer, error) {
	return &mill{
		site: s, group: "bench",
		schema: sql.DefaultMySQLSchema{SubscribeBatchSize: s.batch}, offsets: sql.DefaultMySQLOffsetsAdapter{},
	}, nil
}

func newWatermillQueue(s site) (peer, error) {
	return &mill{
		site:   s,
		schema: sql.MySQLQueueSchema{SubscribeBatchSize: s.batch}, offsets: sql.MySQLQueueOffsetsAdapter{DeleteOnAck: true},
	}, nil
}

func (m *mill) setup(ctx context.Context) error {
	sub, err := m.subscriber()
	if err != nil {
		return err
	}
	return errors.Join(sub.SubscribeInitialize(forwarderTopic), sub.Close())
}

func (m *mill) subscriber() (*sql.Subscriber, error) {
	return sql.NewSubscriber(sql.BeginnerFromStdSQL(m.plain), sql.SubscriberConfig{
		ConsumerGroup: m.group, SchemaAdapter: m.schema, OffsetsAdapter: m.offsets, InitializeSchema: true,
		AckDeadline: &m.patience, PollInterval: 50 * time.Millisecond,
	}, watermill.NopLogger{})
}

func (m *mill) publish(ctx context.Context, o order) error {
	at, body, err := o.attempt()
	if err != nil {
		return err
	}
	return inTx(ctx, m.plain, func(tx *stdsql.Tx) error {
		if _, err := tx.ExecContext(ctx, insertOrder, o.no, at.MsgID); err != nil {
			return err
		}
		table, err := sql.NewPublisher(sql.TxFromStdSQL(tx), sql.PublisherConfig{SchemaAdapter: m.schema}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		msg := message.NewMessageWithContext(ctx, at.MsgID, body)
		msg.Metadata.Set(orderNo, o.no)
		return forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic}).Publish(m.topic, msg)
	})
}

const orderNo = "order_no"

func (m *mill) relay(out *output) (func(context.Context) error, error) {
	sub, err := m.subscriber()
	if err != nil {
		return nil, err
	}
	f, err := forwarder.NewForwarder(sub, rocketMQ{out}, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarderTopic})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	select {
	case <-f.Running():
	case err := <-ended:
		return nil, err
	}
	return func(context.Context) error { return errors.Join(f.Close(), <-ended) }, nil
}

// rocketMQ is a watermill publisher, which RocketMQ lacks. The forwarder hands it one message at a time.
type rocketMQ struct{ out *output }

func (p rocketMQ) Publish(topic string, msgs ...*message.Message) error {
	for _, m := range msgs {
		no := m.Metadata.Get(orderNo)
		msg := primitive.NewMessage(topic, m.Payload).WithKeys([]string{no}).WithTag("order.created")
		msg.WithProperty(primitive.PropertyUniqueClientMessageIdKeyIndex, m.UUID)
		if err := p.out.send(m.Context(), []string{no}, msg); err != nil {
			return err
		}
	}
	return nil
}

func (p rocketMQ) Close() error { return nil }
