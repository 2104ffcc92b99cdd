package rocketmq

import (
	"context"
	"fmt"
	"strings"

	"github.com/halfbox/halfbox/internal/remoting"
)

// directory finds the brokers of a topic.
type directory struct {
	nameServers []string // host:port
	topic       string
	creds       remoting.Credentials
}

func newDirectory(nameServers []string, topic string, creds Credentials) directory {
	d := directory{topic: topic, creds: remoting.Credentials(creds)}
	for _, ns := range nameServers {
		d.nameServers = append(d.nameServers, strings.TrimPrefix(ns, "http://"))
	}
	return d
}

// masters asks the name servers, until one knows it, which brokers have the topic.
func (d directory) masters(ctx context.Context) (brokers []string, err error) {
	for _, ns := range d.nameServers {
		brokers, err = remoting.Route(ctx, ns, d.topic, d.creds)
		if len(brokers) > 0 {
			return brokers, nil
		}
		if err == nil {
			err = fmt.Errorf("name server %s knows no topic %s", ns, d.topic)
		}
	}
	return nil, err
}

// ask asks what any broker answers from memory: where a queue ends.
func (d directory) ask(ctx context.Context, conn *remoting.Conn) (remoting.Answer, error) {
	return conn.Ask(ctx, remoting.CodeMaxOffset, map[string]string{"topic": d.topic, "queueId": "0"})
}
