package app

import (
	"context"

	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

func (a *App) credentials() rocketmq.Credentials {
	return rocketmq.Credentials{AccessKey: a.cfg.RocketMQ.AccessKey, SecretKey: string(a.cfg.RocketMQ.SecretKey)}
}

// openReach has /readyz say whether RocketMQ can be used now. The other checks of it are about the start.
func (a *App) openReach() error {
	reach := rocketmq.NewReach(a.nameServers, a.cfg.RocketMQ.OrderTopic, a.credentials())
	a.readyCheck("rocketmq", func(ctx context.Context) error {
		works, err := reach.Check(ctx)
		if works || a.takesOrdersWithoutRocketMQ() {
			return httpapi.Degraded(err)
		}
		return err
	})
	return nil
}

// takesOrdersWithoutRocketMQ: a process that does must stay in its load balancer when RocketMQ is away, whatever else
// it does. Events and points come late then; taking every API process out would help neither.
func (a *App) takesOrdersWithoutRocketMQ() bool {
	return a.has(RoleAPI) && (a.cfg.Txmsg.Fallback == "outbox" || a.cfg.Order.Delivery == "outbox")
}
