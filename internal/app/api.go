package app

import (
	"context"
	"time"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/faults"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/points"
	"github.com/halfbox/halfbox/txmsg"
)

// checkLockWait is how long a check-back waits for a local transaction that is still open.
const checkLockWait = time.Second

// checkConnections are for the check-backs, which are answered one at a time, and for the rescue.
const checkConnections = 2

// openAPI builds the order service: its transactional producer, its check-backs and its HTTP handler.
func (a *App) openAPI() error {
	if !a.has(RoleAPI) {
		return nil
	}
	writer, err := a.openWriter()
	if err != nil {
		return err
	}
	producer, err := a.openTxmsg(writer)
	if err != nil {
		return err
	}
	publishers, err := a.publishers(map[halfbox.Delivery]order.Publisher{halfbox.DeliveryTxmsg: producer, halfbox.DeliveryOutbox: writer})
	if err != nil {
		return err
	}
	orders, err := order.NewService(order.Config{
		DB:         a.orderDB,
		Publishers: publishers,
		Default:    halfbox.Delivery(a.cfg.Order.Delivery),
	})
	if err != nil {
		return err
	}
	public, err := httpapi.Public(httpapi.PublicConfig{
		Orders: orders, Points: points.NewLedger(a.pointsDB), MaxInFlight: a.cfg.HTTP.MaxInFlight,
		Logger: a.log, Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	return a.listen("http", a.cfg.HTTP.Listen, public, httpDrain, &a.addrs.HTTP)
}

// openTxmsg builds the transactional strategy, with the outbox as its fallback unless that is switched off.
func (a *App) openTxmsg(writer *outbox.Writer) (*txmsg.Producer, error) {
	checker, err := a.openChecker()
	if err != nil {
		return nil, err
	}
	cfg := txmsg.Config{
		DB: a.orderDB, NameServers: a.nameServers,
		AccessKey: a.cfg.RocketMQ.AccessKey, SecretKey: string(a.cfg.RocketMQ.SecretKey),
		Group: a.cfg.RocketMQ.TransactionGroup, Topic: a.cfg.RocketMQ.OrderTopic,
		Checker: checker, HalfTimeout: a.cfg.Txmsg.HalfTimeout, LocalTimeout: a.cfg.Txmsg.LocalTimeout,
		Logger: a.log.Named("txmsg"), Registerer: a.reg,
		Hooks: txmsg.Hooks{
			BeforeHalf:        a.faults.Hook(faults.TxmsgBeforeHalf),
			AfterHalf:         a.faults.Hook(faults.TxmsgAfterHalf),
			BeforeLocalCommit: a.faults.Hook(faults.TxmsgBeforeLocalCommit),
			AfterLocalCommit:  a.faults.Hook(faults.TxmsgAfterLocalCommit),
			AfterEnd:          a.faults.Hook(faults.TxmsgAfterEnd),
		},
	}
	if a.cfg.Txmsg.Fallback == "outbox" {
		cfg.Fallback = writer
	}
	producer, err := txmsg.New(cfg)
	if err != nil {
		return nil, err
	}
	a.onStop("txmsg", producer.Stop)
	a.onStart("txmsg", producer.Start)
	a.readyCheck("txmsg producer", func(context.Context) error { return producer.Ready() })
	return producer, nil
}

// openChecker gives check-backs a small pool of their own, so that they never queue behind orders.
func (a *App) openChecker() (*checkback.Checker, error) {
	if a.checker != nil {
		return a.checker, nil
	}
	db, err := a.openDatabase("order", database.Options{LockWait: checkLockWait, MaxOpen: checkConnections})
	if err != nil {
		return nil, err
	}
	a.checker, err = checkback.New(checkback.Config{
		Resolvers: map[string]checkback.Resolver{
			order.EventCreated:   order.NewCreatedResolver(db),
			order.EventCancelled: txlog.NewResolver(db),
		},
		Grace: a.cfg.Checkback.Grace, Deadline: a.cfg.Checkback.Deadline,
		Logger: a.log.Named("checkback"), Registerer: a.reg,
		Hooks: checkback.Hooks{BeforeAnswer: a.faults.Hook(faults.CheckbackBeforeAnswer)},
	})
	return a.checker, err
}
