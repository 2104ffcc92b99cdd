package rocketmq

import (
	"context"
	"errors"
	"fmt"

	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/outbox"
)

// Probe asks every master broker of the topic that was last sent to a question that changes nothing. nil means that all
// of them answered, whatever they said. It uses connections of its own, since the client's own state is in doubt
// when this is asked.
func (s *Sink) Probe(ctx context.Context) error {
	topic, ok := s.lastTopic.Load().(string)
	if !ok {
		return errors.New("rocketmq sink: nothing was sent yet")
	}
	brokers, err := s.masters(ctx, func(ctx context.Context, server string) ([]string, error) {
		return remoting.Route(ctx, server, topic, s.credentials())
	})
	if err != nil {
		return err
	}
	if len(brokers) == 0 {
		return fmt.Errorf("rocketmq sink: topic %s has no master", topic)
	}
	for _, addr := range brokers {
		if _, err := remoting.Ask(ctx, addr, remoting.CodeBrokerConfig, nil, s.credentials()); err != nil {
			return fmt.Errorf("probe broker %s: %w", addr, err)
		}
	}
	return nil
}

// noRoute judges a send for which the client found no route, which it says of a topic that does not exist and of name
// servers that do not answer alike. Only a topic that the name servers do not know, while they know brokers, is the
// event's own fault: brokers that are down for long have no routes either. err is not a refusal even then, since the
// topic may be about to be created.
func (s *Sink) noRoute(ctx context.Context, topic string, err error) error {
	route, askErr := s.masters(ctx, func(ctx context.Context, server string) ([]string, error) {
		return remoting.Route(ctx, server, topic, s.credentials())
	})
	if askErr != nil || len(route) > 0 {
		return outbox.Unreachable(errors.Join(err, askErr))
	}
	brokers, askErr := s.masters(ctx, func(ctx context.Context, server string) ([]string, error) {
		return remoting.Masters(ctx, server, s.credentials())
	})
	if askErr != nil || len(brokers) == 0 {
		return outbox.Unreachable(errors.Join(err, askErr))
	}
	return fmt.Errorf("the name server knows no topic %q: %w", topic, err)
}

// masters asks one name server after another until one knows masters. None without an error means that one has
// answered that it knows none.
func (s *Sink) masters(ctx context.Context, ask func(ctx context.Context, server string) ([]string, error)) ([]string, error) {
	return remoting.FirstAnswer(ctx, s.cfg.NameServers, ask)
}

func (s *Sink) credentials() remoting.Credentials {
	return remoting.Credentials{AccessKey: s.cfg.AccessKey, SecretKey: s.cfg.SecretKey}
}
