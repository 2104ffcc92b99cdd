package app

import (
	"cmp"
	"context"

	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/faults"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/outbox"
	sinkrocketmq "github.com/halfbox/halfbox/outbox/sink/rocketmq"
)

// relayConnections is the relay's own pool: a backlog being drained must not starve the API.
const relayConnections = 4

// openRelay builds the outbox relay and its sink.
func (a *App) openRelay() error {
	if !a.has(RoleRelay) {
		return nil
	}
	db, err := a.openDatabase("order", database.Options{MaxOpen: relayConnections})
	if err != nil {
		return err
	}
	sink, err := a.openSink(a.cfg.Outbox.Sink)
	if err != nil {
		return err
	}
	claim := outbox.ClaimMode(a.cfg.Outbox.Claim)
	if claim == "auto" {
		claim = "" // the relay knows its dialect
	}
	relay, err := outbox.NewRelay(outbox.RelayConfig{
		DB: db, Sinks: []outbox.Sink{sink}, Ordered: a.orderedSinks(), Claim: claim, Batch: a.cfg.Outbox.Batch, BatchMax: a.cfg.Outbox.BatchMax, BatchBytes: a.cfg.Outbox.BatchBytes, Lease: a.cfg.Outbox.Lease,
		MaxRetries: a.cfg.Outbox.MaxRetries, BackoffBase: a.cfg.Outbox.Backoff, BackoffCap: a.cfg.Outbox.BackoffMax,
		DrainRate: a.cfg.Outbox.DrainRate, Retention: a.cfg.Outbox.Retention,
		SendTimeout: a.cfg.Outbox.SendTimeout, ReclaimInterval: a.cfg.Outbox.ReclaimInterval, PollMax: a.cfg.Outbox.PollMax,
		Logger: a.log, Registerer: a.reg,
		Hooks: outbox.Hooks{
			AfterClaim: a.faults.Hook(faults.OutboxAfterClaim),
			AfterSend:  a.faults.Hook(faults.OutboxAfterSend),
			AfterMark:  a.faults.Hook(faults.OutboxAfterMark),
		},
	})
	if err != nil {
		return err
	}
	a.onStop("relay", relay.Stop)
	a.onStart("relay", relay.Start)
	a.readyCheck("outbox relay", func(context.Context) error { return relay.Ready() })
	a.relay, a.relayDB = relay, db
	return a.openPurger(db)
}

// openPurger builds what keeps t_tx_log small.
func (a *App) openPurger(db *database.DB) error {
	purger, err := txlog.NewPurger(txlog.PurgerConfig{
		DB: db, Retention: a.cfg.Checkback.TxLogRetention, Logger: a.log.Named("checkback"), Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	a.onStop("txlog purge", purger.Stop)
	a.onStart("txlog purge", purger.Start)
	return nil
}

// openSink builds a sink of order events.
func (a *App) openSink(name string) (outbox.Sink, error) {
	cfg := sinkrocketmq.Config{
		Name: name, NameServers: a.nameServers, AccessKey: a.cfg.RocketMQ.AccessKey,
		SecretKey: string(a.cfg.RocketMQ.SecretKey), Group: a.cfg.RocketMQ.RelayGroup,
		SendTimeout: a.cfg.Outbox.SendTimeout * 4 / 5, // the client's own answer comes before the relay gives up
	}
	if a.cfg.Outbox.Ordered {
		sink, err := sinkrocketmq.NewOrdered(cfg)
		if err != nil {
			return nil, err
		}
		a.onStop("rocketmq sink", sink.Close)
		return sink, nil
	}
	sink, err := sinkrocketmq.New(cfg)
	if err != nil {
		return nil, err
	}
	a.onStop("rocketmq sink", sink.Close)
	return sink, nil
}

// orderedSinks are the sinks that keep the order of their keys.
func (a *App) orderedSinks() map[string]outbox.HeadOfLine {
	if !a.cfg.Outbox.Ordered {
		return nil
	}
	return map[string]outbox.HeadOfLine{a.cfg.Outbox.Sink: outbox.HeadOfLine(a.cfg.Outbox.HeadOfLine)}
}

// openWriter builds the strategy that writes event records. Its nudge reaches a relay in this process only; others
// find the record with their next poll.
func (a *App) openWriter() (_ *outbox.Writer, err error) {
	if a.writer != nil {
		return a.writer, nil
	}
	cfg := outbox.WriterConfig{
		DB: a.orderDB, Sink: a.cfg.Outbox.Sink, Destination: a.cfg.RocketMQ.OrderTopic, Ordered: a.cfg.Outbox.Ordered, MaxPayload: a.cfg.Outbox.MaxPayload,
		Logger: a.log, Registerer: a.reg,
	}
	if cfg.Backlog, err = a.openBacklog(); err != nil {
		return nil, err
	}
	if a.relay != nil {
		cfg.Nudge = a.relay.Nudge
	}
	a.writer, err = outbox.NewWriter(cfg)
	return a.writer, err
}

// openBacklog watches the outbox from the process that writes, where no relay need run.
func (a *App) openBacklog() (*outbox.Backlog, error) {
	backlog, err := outbox.NewBacklog(outbox.BacklogConfig{
		DB: a.orderDB, Sink: a.cfg.Outbox.Sink, HeadOfLine: a.orderedSinks()[a.cfg.Outbox.Sink], Limit: a.cfg.Outbox.BacklogLimit, Policy: outbox.BacklogPolicy(a.cfg.Outbox.BacklogPolicy),
		Logger: a.log, Registerer: a.reg,
	})
	if err != nil {
		return nil, err
	}
	a.onStop("backlog", backlog.Stop)
	a.onStart("backlog", backlog.Start)
	return backlog, nil
}

// events lets operators look at the outbox and put its dead letters right.
type events struct {
	db   *database.DB
	sink string // the configured one
}

var _ httpapi.Events = events{}

func (e events) Stats(ctx context.Context) (outbox.Snapshot, error) { return outbox.Stats(ctx, e.db) }

func (e events) Search(ctx context.Context, f outbox.Filter) (outbox.Page, error) {
	return outbox.Search(ctx, e.db, f)
}

func (e events) Redrive(ctx context.Context, o outbox.Operation) (outbox.OperationResult, error) {
	return outbox.Redrive(ctx, e.db, o)
}

func (e events) PurgeDead(ctx context.Context, o outbox.Operation) (outbox.OperationResult, error) {
	return outbox.PurgeDead(ctx, e.db, o)
}

func (e events) BlockedKeys(ctx context.Context, sink, after string, limit int) ([]outbox.BlockedKey, error) {
	return outbox.BlockedKeys(ctx, e.db, cmp.Or(sink, e.sink), after, limit)
}

func (e events) Get(ctx context.Context, msgID string) ([]outbox.Entry, error) {
	return outbox.Get(ctx, e.db, msgID)
}
