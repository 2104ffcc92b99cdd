package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/rocketmq"
	domain "github.com/halfbox/halfbox/order"
)

// maxOrder bounds a line of standard input.
const maxOrder = 1 << 20

// readyTimeout bounds the start of a service.
const readyTimeout = 60 * time.Second

// Serve is the child: the service with one strategy, measured from inside. It takes its configuration and its orders
// from in, answers on out, and ends when in does. records is the file of a compare.Recorder.
func Serve(strategy compare.Strategy, records string, in io.Reader, out io.Writer, log *zap.Logger) (err error) {
	orders := bufio.NewScanner(in)
	orders.Buffer(nil, maxOrder)
	first, err := next(orders)
	if err != nil {
		return err
	}
	cfg, err := decodeConfig(first.Config)
	if err != nil {
		return err
	}
	recorder, err := compare.NewRecorder(records)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, recorder.Close()) }()
	m, err := newMeter()
	if err != nil {
		return err
	}
	a, err := app.New(app.Options{Config: cfg, Logger: log, Instruments: instruments(strategy, recorder, m)})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), app.StopTimeout)
		defer cancel()
		if stopErr := a.Stop(ctx); stopErr != nil {
			log.Warn("not everything finished in time", zap.Error(stopErr))
		}
	}()
	if err := a.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	if err := a.AwaitReady(ctx); err != nil {
		return fmt.Errorf("the service does not become ready: %w", err)
	}
	return obey(orders, out, m, "http://"+a.Addresses().HTTP)
}

// obey answers every order until there are no more.
func obey(orders *bufio.Scanner, out io.Writer, m *meter, url string) error {
	for enc := json.NewEncoder(out); ; {
		counters, err := m.counters()
		if err != nil {
			return err
		}
		if err := enc.Encode(answer{URL: url, Counters: counters}); err != nil {
			return err
		}
		o, err := next(orders)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if o.LoseCommits != nil {
			m.loseEvery.Store(int64(*o.LoseCommits))
		}
	}
}

func next(orders *bufio.Scanner) (o order, err error) {
	if !orders.Scan() {
		return o, errors.Join(orders.Err(), io.EOF)
	}
	return o, json.Unmarshal(orders.Bytes(), &o)
}

// instruments look at the service for the comparison.
func instruments(s compare.Strategy, recorder *compare.Recorder, m *meter) app.Instruments {
	in := app.Instruments{
		SQL:       m.hooks,
		Publisher: recorder.Publisher,
		Delivered: func(msg rocketmq.Message, received, done time.Time) {
			if _, ev, err := halfbox.Decode(msg.Body); err == nil {
				recorder.Delivered(msg.MsgID, ev.Subject, msg.StoredAt, received, done)
			}
		},
	}
	if s.Open != nil {
		in.Publishers = map[halfbox.Delivery]func(app.PublisherParts) domain.Publisher{
			s.Delivery: func(p app.PublisherParts) domain.Publisher {
				return s.Open(compare.Parts{DB: p.DB, Sink: p.Sink, Topic: p.Topic, Logger: p.Logger})
			},
		}
	}
	return in
}

// meter counts inside the service.
type meter struct {
	process          *prometheus.Registry
	orderSQL, points atomic.Int64
	commits          atomic.Int64
	loseEvery        atomic.Int64
}

func newMeter() (*meter, error) {
	m := &meter{process: prometheus.NewRegistry()}
	return m, m.process.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

var errAnswerLost = errors.New("the answer to COMMIT is lost on purpose")

// hooks count every statement of a database, and lose answers in the order database when they are told to.
func (m *meter) hooks(name string) database.Hooks {
	count := &m.orderSQL
	if name == "points" {
		count = &m.points
	}
	h := database.Hooks{Before: func(database.Op, string) error { count.Add(1); return nil }}
	if name == "order" {
		h.After = func(op database.Op, _ string) error {
			every := m.loseEvery.Load()
			if op == database.OpCommit && every > 0 && m.commits.Add(1)%every == 0 {
				return errAnswerLost
			}
			return nil
		}
	}
	return h
}

// counters are the sums so far. The process collector knows the CPU time on Linux, macOS and Windows.
func (m *meter) counters() (compare.Counters, error) {
	c := compare.Counters{OrderSQL: m.orderSQL.Load(), PointsSQL: m.points.Load()}
	families, err := m.process.Gather()
	if err != nil {
		return c, fmt.Errorf("CPU time of this process: %w", err)
	}
	for _, f := range families {
		if f.GetName() == "process_cpu_seconds_total" {
			c.CPUSeconds = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return c, nil
}
