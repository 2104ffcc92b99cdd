package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/outbox"
	sinkrocketmq "github.com/halfbox/halfbox/outbox/sink/rocketmq"
)

// relayed is halfbox as its users run it: Writer, Relay and the RocketMQ sink.
type relayed struct {
	site
	writer *outbox.Writer
	poke   func() // the relay that works just now, if any
}

func newHalfbox(s site) (peer, error) {
	h := &relayed{site: s, poke: func() {}}
	var err error
	h.writer, err = outbox.NewWriter(outbox.WriterConfig{DB: s.db, Sink: sinkName, Destination: s.topic, Nudge: func() { h.poke() }})
	return h, err
}

const sinkName = "bench"

func (h *relayed) setup(ctx context.Context) error { return h.db.Migrate(ctx, outbox.Migrations()) }

func (h *relayed) publish(ctx context.Context, o order) error {
	_, err := h.writer.PublishInTx(ctx, o.event, func(tx *gorm.DB, at halfbox.Attempt) error {
		return tx.Exec(insertOrder, o.no, at.MsgID).Error
	})
	return err
}

func (h *relayed) relay(out *output) (func(context.Context) error, error) {
	sink, err := sinkrocketmq.New(sinkrocketmq.Config{Name: sinkName, NameServers: out.nameServers, Group: out.group})
	if err != nil {
		return nil, err
	}
	r, err := outbox.NewRelay(outbox.RelayConfig{
		DB: h.db, Sinks: []outbox.Sink{watched{Sink: sink, out: out}}, Batch: h.batch, Lease: h.patience,
		SendTimeout: min(5*time.Second, h.patience/3), ReclaimInterval: time.Second,
		DrainRate: 1_000_000, // a backlog is drained as fast as the others drain theirs
	})
	if err != nil {
		return nil, err
	}
	if err := r.Start(); err != nil {
		return nil, err
	}
	h.poke = r.Nudge
	return func(ctx context.Context) error {
		h.poke = func() {}
		return errors.Join(r.Stop(ctx), sink.Close(ctx))
	}, nil
}

// watched is the sink with the same faults and the same bookkeeping as the other peers have.
type watched struct {
	*sinkrocketmq.Sink
	out *output
}

func (w watched) Send(ctx context.Context, batch []outbox.Record) error {
	keys := make([]string, len(batch))
	for i, r := range batch {
		keys[i] = r.BizNo
	}
	if err := w.out.admit(ctx, len(keys)); err != nil {
		return outbox.Unreachable(fmt.Errorf("bench: %w", err))
	}
	if err := w.Sink.Send(ctx, batch); err != nil {
		return err
	}
	w.out.confirm(keys)
	return nil
}
