package app

import (
	"context"
	"time"

	"github.com/halfbox/halfbox/internal/faults"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/points"
)

// openPoints builds the points consumer.
func (a *App) openPoints() error {
	if !a.has(RolePoints) {
		return nil
	}
	handler, err := points.NewHandler(points.HandlerConfig{
		Consumer: a.cfg.RocketMQ.PointsGroup, DB: a.pointsDB, Logger: a.log.Named("points"), Registerer: a.reg,
		Hooks: points.Hooks{
			BeforeCommit: a.faults.Hook(faults.PointsBeforeCommit),
			AfterCommit:  a.faults.Hook(faults.PointsAfterCommit),
		},
	})
	if err != nil {
		return err
	}
	consumer, err := rocketmq.NewConsumer(rocketmq.ConsumerConfig{
		NameServers: a.nameServers,
		Credentials: a.credentials(),
		Group:       a.cfg.RocketMQ.PointsGroup, Topic: a.cfg.RocketMQ.OrderTopic,
		Logger: a.log.Named("points"),
		Handle: func(ctx context.Context, m rocketmq.Message) error {
			received := time.Now()
			_, err := handler.Handle(ctx, points.Message{MsgID: m.MsgID, Topic: m.Topic, Body: m.Body})
			if err == nil && a.inside.Delivered != nil {
				a.inside.Delivered(m, received, time.Now())
			}
			return err
		},
	})
	if err != nil {
		return err
	}
	a.onStop("points consumer", consumer.Stop)
	a.onStart("points consumer", func() error { consumer.Start(); return nil })
	a.readyCheck("points consumer", func(context.Context) error {
		err := consumer.Ready()
		if consumer.Begun() && a.takesOrdersWithoutRocketMQ() {
			return httpapi.Degraded(err)
		}
		return err
	})
	return a.openLag()
}
