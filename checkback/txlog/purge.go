package txlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/database"
)

// MinRetention is the least that a Purger takes: RocketMQ keeps messages for 72 h by default.
const MinRetention = 73 * time.Hour

// PurgerConfig makes a Purger.
type PurgerConfig struct {
	// DB holds t_tx_log. Give it a small pool.
	DB *database.DB
	// Retention is how long a row is kept. It must be longer than the broker keeps messages. Defaults to 7 days; less
	// than MinRetention is refused.
	Retention time.Duration
	// Batch is the largest number of rows that one statement deletes. Defaults to 500.
	Batch int
	// Interval is the time between two looks. Defaults to 1 h.
	Interval time.Duration
	// Logger defaults to a no-op, Registerer to none.
	Logger     *zap.Logger
	Registerer prometheus.Registerer
}

func (c PurgerConfig) withDefaults() PurgerConfig {
	if c.Retention == 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	if c.Batch == 0 {
		c.Batch = 500
	}
	if c.Interval == 0 {
		c.Interval = time.Hour
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c PurgerConfig) validate() error {
	switch {
	case c.DB == nil:
		return errors.New("txlog: PurgerConfig.DB is missing")
	case c.Retention < MinRetention:
		return fmt.Errorf("txlog: PurgerConfig.Retention %v is below %v: the broker may still ask about older transactions", c.Retention, MinRetention)
	case c.Batch < 1:
		return fmt.Errorf("txlog: PurgerConfig.Batch %d is not positive", c.Batch)
	case c.Interval < 0:
		return fmt.Errorf("txlog: PurgerConfig.Interval %v is negative", c.Interval)
	}
	return nil
}

// Purger deletes rows that are past their retention. Several may run on one table. It is safe for concurrent use.
type Purger struct {
	cfg    PurgerConfig
	purged prometheus.Counter
	errors prometheus.Counter
	ctx    context.Context
	cancel context.CancelFunc
	loop   sync.WaitGroup
}

// NewPurger returns a Purger; Start lets it work.
func NewPurger(cfg PurgerConfig) (*Purger, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Purger{
		cfg: cfg,
		purged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "halfbox_txlog_purged_total", Help: "Rows of t_tx_log deleted after their retention.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "halfbox_txlog_purge_errors_total", Help: "Looks at t_tx_log that the database ended.",
		}),
	}
	p.cfg.Logger = cfg.Logger.Named("txlog")
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{p.purged, p.errors} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("txlog: %w", err)
			}
		}
	}
	return p, nil
}

// Start begins to look, in the background. The database need not be there yet.
func (p *Purger) Start() error {
	p.loop.Go(func() {
		every := time.NewTicker(p.cfg.Interval)
		defer every.Stop()
		for {
			if _, err := p.Purge(p.ctx); err != nil && p.ctx.Err() == nil {
				p.errors.Inc()
				p.cfg.Logger.Warn("old rows cannot be deleted now", zap.Error(err), zap.Duration("again_in", p.cfg.Interval))
			}
			select {
			case <-every.C:
			case <-p.ctx.Done():
				return
			}
		}
	})
	return nil
}

// Stop ends the work. ctx bounds the wait.
func (p *Purger) Stop(ctx context.Context) error {
	p.cancel()
	done := make(chan struct{})
	go func() {
		p.loop.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("txlog: the purge is still at work: %w", context.Cause(ctx))
	}
}

// Purge deletes every row that is past its retention, batch by batch, and returns how many it deleted.
func (p *Purger) Purge(ctx context.Context) (total int64, err error) {
	defer func() {
		p.purged.Add(float64(total))
		if total > 0 {
			p.cfg.Logger.Info("old rows deleted", zap.Int64("rows", total))
		}
	}()
	end := firstID(time.Now().Add(-p.cfg.Retention))
	for after := ""; ; {
		var ids []string
		err := p.cfg.DB.Read.WithContext(ctx).
			Raw("SELECT tx_id FROM t_tx_log WHERE tx_id > ? AND tx_id < ? ORDER BY tx_id LIMIT ?", after, end, p.cfg.Batch).Scan(&ids).Error
		if err != nil {
			return total, fmt.Errorf("look for old transactions: %w", err)
		}
		if len(ids) == 0 {
			return total, nil
		}
		after = ids[len(ids)-1]
		// A tombstone may be far younger than the attempt whose id it has.
		d := p.cfg.DB.Dialect
		res := p.cfg.DB.Write.WithContext(ctx).Exec(
			"DELETE FROM t_tx_log WHERE tx_id >= ? AND tx_id <= ? AND created_at < "+d.NowPlus(), ids[0], after, d.Offset(-p.cfg.Retention))
		if res.Error != nil {
			return total, fmt.Errorf("delete old transactions: %w", res.Error)
		}
		total += res.RowsAffected
	}
}

// firstID is the smallest UUIDv7 of a moment: its first 48 bits are milliseconds.
func firstID(t time.Time) string {
	var id uuid.UUID
	for i, ms := 5, t.UnixMilli(); i >= 0; i, ms = i-1, ms>>8 {
		id[i] = byte(ms)
	}
	return id.String()
}
