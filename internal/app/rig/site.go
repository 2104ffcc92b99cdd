package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/netfault"
)

// cleanTimeout bounds the removal of what a site made.
const cleanTimeout = 30 * time.Second

// site is a place of its own for one strategy.
type site struct {
	engines *Engines
	dir     string
	cfg     configs.Config // of the service
	command []string

	process       *process
	cluster       *netfault.Cluster
	database      *netfault.Proxy // nil unless a fault needs it
	traffic       traffic
	order, points *database.DB // to look at
	undo          []func(ctx context.Context) error
}

var _ compare.Site = (*site)(nil)

func (s *site) logPath() string { return filepath.Join(s.dir, "service.log") }

// Records is the file of the service's Recorder.
func (s *site) Records() string { return filepath.Join(s.dir, "records") }

// URL is where the API is.
func (s *site) URL() string { return s.process.url }

// Order is the order database.
func (s *site) Order() *database.DB { return s.order }

// Points is the points database.
func (s *site) Points() *database.DB { return s.points }

// onClose adds to what Close undoes, last in first out.
func (s *site) onClose(undo func(ctx context.Context) error) { s.undo = append(s.undo, undo) }

// openBroker starts a broker, or takes the cluster, and puts proxies before it.
func (s *site) openBroker(ctx context.Context, n names) error {
	if s.cfg.RocketMQ.Embedded() {
		cfg := s.cfg
		cfg.Broker.Listen = "127.0.0.1:0"
		b, err := app.OpenBroker(cfg, broker.Config{})
		if err != nil {
			return err
		}
		s.onClose(b.Stop)
		if err := b.Start(); err != nil {
			return err
		}
		s.cfg.RocketMQ.NameServers = []string{b.Addr()}
	} else {
		// Sweep looks again whether they are gone.
		s.onClose(func(ctx context.Context) error {
			s.engines.deleteAll(ctx, slices.Concat(n.topics, n.groups))
			return nil
		})
	}
	cluster, err := netfault.NewCluster(ctx, s.cfg.RocketMQ.NameServers, s.traffic.request)
	if err != nil {
		return fmt.Errorf("RocketMQ at %v: %w", s.cfg.RocketMQ.NameServers, err)
	}
	s.cluster = cluster
	s.onClose(func(context.Context) error { cluster.Close(); return nil })
	s.cfg.RocketMQ.NameServers = cluster.NameServers()
	return nil
}

// look opens the databases to be judged, not through the proxy.
func (s *site) look() error {
	for name, db := range map[string]**database.DB{"order": &s.order, "points": &s.points} {
		opened, err := s.openToLook(name)
		if err != nil {
			return err
		}
		*db = opened
		s.onClose(func(context.Context) error { return opened.Close() })
	}
	return nil
}

// Counters are what the service says and what the proxy has seen.
func (s *site) Counters(ctx context.Context) (compare.Counters, error) {
	c, err := s.process.counters(ctx)
	c.BrokerSends, c.BrokerEnds, c.BrokerRequests = s.traffic.sends.Load(), s.traffic.ends.Load(), s.traffic.requests.Load()
	return c, err
}

// LoseCommits loses the answer to every n-th COMMIT.
func (s *site) LoseCommits(ctx context.Context, n int) error {
	_, err := s.process.ask(ctx, order{LoseCommits: &n}, askTimeout)
	return err
}

// Kill ends the service as kill -9 does.
func (s *site) Kill() error { return s.process.kill() }

// Restart starts it again.
func (s *site) Restart(ctx context.Context) (err error) {
	p, err := start(ctx, s.command, s.cfg, s.logPath())
	if err != nil {
		return err
	}
	s.process = p
	return nil
}

// Broker is the wire to name servers and brokers.
func (s *site) Broker() compare.Wire { return wire{s.cluster.Set} }

// Database is the wire to the database server.
func (s *site) Database() compare.Wire {
	if s.database == nil {
		return nil
	}
	return wire{s.database.Set}
}

// Close stops the service and removes what was made.
func (s *site) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	var errs []error
	if s.cluster != nil {
		s.cluster.Set(netfault.Fault{}) // a service stops faster with its broker
	}
	if s.process != nil {
		errs = append(errs, s.process.stop())
	}
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i](ctx))
	}
	s.undo = nil
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// wire makes compare's faults of a proxy's.
type wire struct {
	set func(netfault.Fault, ...netfault.Direction)
}

// Cut resets every connection.
func (w wire) Cut() { w.set(netfault.Fault{Kind: netfault.Cut}) }

// Delay makes everything late.
func (w wire) Delay(by time.Duration) { w.set(netfault.Fault{Delay: by}) }

// Pass ends the faults.
func (w wire) Pass() { w.set(netfault.Fault{}) }
