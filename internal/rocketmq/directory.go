package rocketmq

import (
	"context"
	"fmt"

	"github.com/halfbox/halfbox/internal/remoting"
)

// directory finds the brokers of a topic.
type directory struct {
	nameServers []string
	topic       string
	creds       remoting.Credentials
}

func newDirectory(nameServers []string, topic string, creds Credentials) directory {
	return directory{nameServers: nameServers, topic: topic, creds: remoting.Credentials(creds)}
}

// masters asks the name servers, until one knows it, which brokers have the topic.
func (d directory) masters(ctx context.Context) (brokers []string, err error) {
	brokers, err = remoting.FirstAnswer(ctx, d.nameServers, func(ctx context.Context, ns string) ([]string, error) {
		return remoting.Route(ctx, ns, d.topic, d.creds)
	})
	if err == nil && len(brokers) == 0 {
		err = fmt.Errorf("topic %s is not known", d.topic)
	}
	return brokers, err
}

// ask asks what any broker answers from memory: where a queue ends.
func (d directory) ask(ctx context.Context, conn *remoting.Conn) (remoting.Answer, error) {
	return conn.Ask(ctx, remoting.CodeMaxOffset, map[string]string{"topic": d.topic, "queueId": "0"})
}
