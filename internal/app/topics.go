package app

import (
	"context"
	"strings"

	"github.com/halfbox/halfbox/internal/remoting"
)

// The queues of a topic that is made here. A retry topic has one.
const (
	topicQueues      = 4
	retryTopicQueues = 1
)

// openTopics makes the topics of a cluster that lacks them, if the configuration says so. A topic that only its first
// message would make cannot be consumed before, and the retry topic of a new group would make its first retry 20 s
// late. The in-process broker makes topics by itself.
func (a *App) openTopics() error {
	if a.cfg.RocketMQ.Embedded() || !a.cfg.RocketMQ.CreateTopics {
		return nil
	}
	creds := remoting.Credentials{AccessKey: a.cfg.RocketMQ.AccessKey, SecretKey: string(a.cfg.RocketMQ.SecretKey)}
	a.background("topics", func(ctx context.Context) (err error) {
		for _, ns := range a.nameServers { // any one that answers will do
			ns = strings.TrimPrefix(ns, "http://")
			if err = remoting.EnsureTopic(ctx, ns, a.cfg.RocketMQ.OrderTopic, topicQueues, creds); err == nil {
				err = remoting.EnsureTopic(ctx, ns, "%RETRY%"+a.cfg.RocketMQ.PointsGroup, retryTopicQueues, creds)
			}
			if err == nil {
				return nil
			}
		}
		return err
	})
	return nil
}
