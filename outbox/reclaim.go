package outbox

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// reclaimBatch bounds what one look for expired leases returns.
const reclaimBatch = 200

// reclaimResult is the outcome of one run.
type reclaimResult struct {
	reclaimed, dead int
}

func (r *Relay) runReclaim(ctx context.Context) {
	every(ctx, r.cfg.Logger, "reclaim", r.cfg.ReclaimInterval, func(ctx context.Context) error {
		res, err := r.reclaimOnce(ctx)
		if res.reclaimed > 0 {
			r.Nudge()
		}
		return err
	})
}

// reclaimOnce takes back every lease that has run out, of any relay and any sink. Each row is changed only if it is
// still SENDING under the owner that was seen and its lease is still over: a row that was completed, renewed or
// reclaimed in between stays as it is.
func (r *Relay) reclaimOnce(ctx context.Context) (reclaimResult, error) {
	var total reclaimResult
	for {
		found, err := r.findExpired(ctx)
		if err != nil {
			return total, err
		}
		changed := 0
		for _, g := range groupExpired(found, r.cfg.MaxReclaims) {
			n, err := r.takeBack(ctx, g)
			if err != nil {
				return total, err
			}
			changed += n
			if g.bury {
				total.dead += n
			} else {
				total.reclaimed += n
			}
		}
		if len(found) < reclaimBatch || changed == 0 {
			return total, nil
		}
	}
}

func (r *Relay) findExpired(ctx context.Context) ([]expiredRow, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StatementTimeout)
	defer cancel()
	return r.store.expired(ctx, reclaimBatch)
}

// expiredGroup is what one statement takes back.
type expiredGroup struct {
	sink, owner string
	bury        bool
	ids         []int64
}

// groupExpired puts together the rows of one dead claim that share a fate. A row whose reclaim is the last allowed
// becomes a dead letter: from its third claim on it was alone, so it is what its relays died of.
func groupExpired(rows []expiredRow, maxReclaims int) []*expiredGroup {
	type key struct {
		sink, owner string
		bury        bool
	}
	var groups []*expiredGroup
	by := map[key]*expiredGroup{}
	for _, row := range rows {
		k := key{sink: row.sink, owner: row.owner, bury: row.reclaims+1 >= maxReclaims}
		if by[k] == nil {
			by[k] = &expiredGroup{sink: k.sink, owner: k.owner, bury: k.bury}
			groups = append(groups, by[k])
		}
		by[k].ids = append(by[k].ids, row.id)
	}
	return groups
}

var errKillsRelay = errors.New("its lease ran out every time, although it was sent alone")

func (r *Relay) takeBack(ctx context.Context, g *expiredGroup) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StatementTimeout)
	defer cancel()
	m := r.metrics.sink(g.sink)
	if g.bury {
		n, err := r.store.bury(ctx, g.owner, sorted(g.ids), time.Now().UTC(), errorText(ReasonKillsRelay, errKillsRelay))
		if n > 0 {
			m.dead(ReasonKillsRelay).Add(float64(n))
			r.cfg.Logger.Error("event is a dead letter", zap.String("sink", g.sink), zap.Int64s("ids", g.ids), zap.String("reason", ReasonKillsRelay))
		}
		return int(n), err
	}
	n, err := r.store.reclaim(ctx, g.owner, sorted(g.ids))
	if n > 0 {
		m.reclaimed.Add(float64(n))
		r.cfg.Logger.Warn("lease ran out, reclaimed", zap.String("sink", g.sink), zap.String("claim_owner", g.owner), zap.Int64("rows", n))
	}
	return int(n), err
}
