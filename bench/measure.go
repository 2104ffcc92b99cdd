package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/remoting"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

const (
	patience       = 30 * time.Second // watermill's default AckDeadline
	outagePatience = 3 * time.Second
	quiet          = 15 * time.Second // a relay that confirms nothing for so long has nothing more to give
	stopTimeout    = 40 * time.Second
	warmTimeout    = 20 * time.Second
	queues         = 4
)

// measure has every peer do every phase, in turns, and returns what it has even when it fails.
func measure(ctx context.Context, o options) (*report, error) {
	id := "bench_" + uuid.NewString()[:8]
	rep := &report{Options: o.public(), Started: time.Now().UTC()}
	if err := remoting.EnsureTopic(ctx, o.nameServer, id, queues, remoting.Credentials{}); err != nil {
		return nil, err
	}
	if err := rocketmq.Configure(zap.NewNop()); err != nil { // the client writes to the terminal otherwise
		return nil, err
	}
	out, err := newOutput(o.nameServer, id)
	if err != nil {
		return nil, err
	}
	if err := warm(ctx, out, id); err != nil {
		return nil, errors.Join(err, out.close())
	}
	for round := range o.rounds {
		for i := range contenders() {
			// Another one begins in every round, so that nobody always runs on the warm or the full machine.
			c := contenders()[(i+round)%len(contenders())]
			if !slices.Contains(o.names(), c.name) {
				continue
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.rounds, c.name)
			s, err := one(ctx, o, c, out, id)
			s.Round, s.Peer = round+1, c.name
			rep.Samples = append(rep.Samples, s)
			if err != nil {
				return rep, errors.Join(fmt.Errorf("%s: %w", c.name, err), out.close())
			}
		}
	}
	return rep, out.close()
}

// one is a peer's round: a schema of its own, the backlog, the live phase, the outage.
func one(ctx context.Context, o options, c contender, out *output, topic string) (sample, error) {
	var s sample
	err := withPeer(ctx, o, c, site{topic: topic, batch: o.batch, patience: patience}, func(p peer) error {
		return backlog(ctx, o, p, out, &s)
	})
	if err != nil {
		return s, err
	}
	if o.live > 0 {
		err := withPeer(ctx, o, c, site{topic: topic, batch: o.batch, patience: patience}, func(p peer) error {
			return live(ctx, o, p, out, &s)
		})
		if err != nil {
			return s, err
		}
	}
	if !o.outage {
		return s, nil
	}
	return s, withPeer(ctx, o, c, site{topic: topic, batch: o.batch, patience: outagePatience}, func(p peer) error {
		return outage(ctx, o, p, out, &s)
	})
}

// withPeer makes a schema, and the peer in it, for one phase.
func withPeer(ctx context.Context, o options, c contender, s site, do func(peer) error) (err error) {
	cfg, err := mysql.ParseDSN(o.dsn)
	if err != nil {
		return err
	}
	cfg.DBName = ""
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	admin := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, admin.Close()) }()
	cfg.DBName = "bench_" + uuid.NewString()[:8]
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE "+cfg.DBName); err != nil {
		return err
	}
	defer func() {
		_, drop := admin.ExecContext(context.WithoutCancel(ctx), "DROP DATABASE "+cfg.DBName) // after an interruption, too
		err = errors.Join(err, drop)
	}()
	if s.db, err = database.OpenMySQL(cfg.FormatDSN(), database.Options{MaxOpen: o.writers + 4}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.db.Close()) }()
	if s.plain, err = sql.Open("mysql", cfg.FormatDSN()); err != nil {
		return err
	}
	s.plain.SetMaxOpenConns(o.writers + 4)
	s.plain.SetMaxIdleConns(o.writers + 4)
	defer func() { err = errors.Join(err, s.plain.Close()) }()
	p, err := c.make(s)
	if err != nil {
		return err
	}
	if err := p.setup(ctx); err != nil {
		return err
	}
	if err := s.db.Write.WithContext(ctx).Exec(createOrders).Error; err != nil {
		return err
	}
	return do(p)
}

// backlog writes events while nothing relays, and then relays them.
func backlog(ctx context.Context, o options, p peer, out *output, s *sample) error {
	out.forget(0, -1, 0)
	began := time.Now()
	if err := publish(ctx, p, o.writers, o.events); err != nil {
		return err
	}
	s.WritePerSecond = perSecond(o.events, time.Since(began))
	began = time.Now()
	last, err := relayAll(ctx, p, out, o.events)
	if err != nil {
		return err
	}
	s.DrainPerSecond = perSecond(o.events, last.Sub(began))
	s.DrainLost, s.DrainRepeated = account(out, o.events)
	return nil
}

// live writes events while the relay works. Whatever the relay has passed over is lost.
func live(ctx context.Context, o options, p peer, out *output, s *sample) error {
	out.forget(o.slow, -1, 0)
	stop, err := p.relay(out)
	if err != nil {
		return err
	}
	began := time.Now()
	err = publish(ctx, p, o.writers, o.live)
	s.LiveWritePerSecond = perSecond(o.live, time.Since(began))
	if err == nil {
		_, err = out.await(ctx, o.live, quiet)
	}
	s.LiveLost, s.LiveRepeated = account(out, o.live)
	return errors.Join(err, stopped(stop))
}

// outage takes the broker away from the sixth of a hundred events on, for twice as long as the peer holds a batch.
func outage(ctx context.Context, o options, p peer, out *output, s *sample) error {
	const events, confirmed = 100, 5
	out.forget(0, confirmed, 2*outagePatience)
	if err := publish(ctx, p, o.writers, events); err != nil {
		return err
	}
	if _, err := relayAll(ctx, p, out, events); err != nil {
		return err
	}
	lost, repeated := account(out, events)
	s.OutageLost, s.OutageRepeated = &lost, &repeated
	return nil
}

func relayAll(ctx context.Context, p peer, out *output, events int) (last time.Time, err error) {
	stop, err := p.relay(out)
	if err != nil {
		return time.Time{}, err
	}
	last, err = out.await(ctx, events, quiet)
	return last, errors.Join(err, stopped(stop))
}

func stopped(stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return stop(ctx)
}

// publish commits n orders with their events, from writers at once.
func publish(ctx context.Context, p peer, writers, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n; i += writers {
				o, err := newOrder()
				if err == nil {
					err = p.publish(ctx, o)
				}
				if err != nil {
					cancel(fmt.Errorf("write: %w", err))
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// warm sends one message that is not part of any phase: a topic's first send pays for its files at the broker and for
// the client's route.
func warm(ctx context.Context, out *output, topic string) error {
	deadline := time.Now().Add(warmTimeout)
	for {
		err := out.send(ctx, nil, primitive.NewMessage(topic, []byte("{}")))
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// account returns how many of n committed events the broker never confirmed, and how many it confirmed again.
func account(out *output, n int) (lost, repeated int) {
	got, repeated := out.count()
	return n - got, repeated
}

func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }
