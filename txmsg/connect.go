package txmsg

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/remoting"
)

// defaultTopic is what a broker that may make topics has; the client takes its route for a topic that has none yet.
const defaultTopic = "TBW102"

// connect starts the client once there is a route. A client that starts before has its first heartbeat behind it when
// the broker comes, and the next one is up to 30 s away.
func (p *Producer) connect() {
	for wait := warmupRetryMin; !p.hasRoute(); wait = min(2*wait, warmupRetryMax) {
		if !p.pause(wait) {
			return
		}
	}
	if err := p.client.Start(); err != nil {
		p.cfg.Logger.Error("the RocketMQ producer does not start: orders by txmsg take the fallback until this process starts again", zap.Error(err))
		return
	}
	p.connected.Store(true)
	p.warmUp(time.Now())
}

// hasRoute asks the name servers whether a client would find a broker.
func (p *Producer) hasRoute() bool {
	ctx, cancel := context.WithTimeout(p.warming, p.cfg.HalfTimeout)
	defer cancel()
	masters, err := p.masters(ctx, p.cfg.Topic)
	if err != nil {
		p.cfg.Logger.Debug("no route yet", zap.String("topic", p.cfg.Topic), zap.Error(err))
	}
	return len(masters) > 0
}

// masters asks one name server after another for the brokers that the client finds for a topic.
func (p *Producer) masters(ctx context.Context, topic string) ([]string, error) {
	return remoting.FirstAnswer(ctx, p.cfg.NameServers, func(ctx context.Context, server string) ([]string, error) {
		masters, err := remoting.Route(ctx, server, topic, p.credentials())
		if err != nil || len(masters) > 0 {
			return masters, err
		}
		return remoting.Route(ctx, server, defaultTopic, p.credentials())
	})
}

func (p *Producer) credentials() remoting.Credentials {
	return remoting.Credentials{AccessKey: p.cfg.AccessKey, SecretKey: p.cfg.SecretKey}
}
