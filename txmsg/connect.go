package txmsg

import (
	"context"
	"strings"
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
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.HalfTimeout)
	defer cancel()
	creds := remoting.Credentials{AccessKey: p.cfg.AccessKey, SecretKey: p.cfg.SecretKey}
	for _, server := range p.cfg.NameServers {
		for _, topic := range []string{p.cfg.Topic, defaultTopic} {
			masters, err := remoting.Route(ctx, strings.TrimPrefix(server, "http://"), topic, creds)
			if len(masters) > 0 {
				return true
			}
			if err != nil {
				p.cfg.Logger.Debug("no route yet", zap.String("name_server", server), zap.String("topic", topic), zap.Error(err))
				break
			}
		}
	}
	return false
}
