package outbox

import (
	"context"
	"database/sql"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"
)

const (
	// purgeBatch is how many records one statement reads and one transaction deletes at most: few enough that neither
	// writers nor claims have to wait for it.
	purgeBatch = 200
	// purgeRest is the shortest pause between two batches. A batch that took longer is followed by a pause as long.
	purgeRest = 5 * time.Millisecond
)

const (
	// sqlOldest walks the table from its lowest id. old is a record that may go; young one too new to be looked
	// behind. {now+} takes the negative retention.
	sqlOldest = `SELECT id, status = 'SUCCESS' AND created_at < {now+} AND sent_at < {now+}, created_at >= {now+}
 FROM t_event_record {by id} WHERE id > ? ORDER BY id LIMIT ?`

	// sqlPurge: SUCCESS -> gone. A record that reconcile has put back to WAIT meanwhile stays.
	sqlPurge = `{delete by id} WHERE id IN ? AND status = 'SUCCESS' AND created_at < {now+} AND sent_at < {now+}`
)

// oldRow is a record as the purge looks at it.
type oldRow struct {
	id         int64
	old, young bool
}

func (s store) oldest(ctx context.Context, retention time.Duration, after int64) ([]oldRow, error) {
	off := s.db.Dialect.Offset(-retention)
	query := s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlOldest), off, off, off, after, purgeBatch)
	return collect(query, func(rs *sql.Rows) (r oldRow, err error) {
		var old, young sql.NullBool
		err = rs.Scan(&r.id, &old, &young)
		r.old, r.young = old.Bool, young.Bool
		return r, err
	})
}

func (s store) purge(ctx context.Context, retention time.Duration, ids []int64) (n int64, err error) {
	off := s.db.Dialect.Offset(-retention)
	// In a transaction for the sake of its repetitions: a deadlock is nothing to report.
	err = s.db.InTx(ctx, func(tx *gorm.DB) error {
		n, err = affected(tx.Exec(s.dialect.Replace(sqlPurge), ids, off, off))
		return err
	})
	return n, err
}

func (r *Relay) runRetention(ctx context.Context) {
	if r.cfg.Retention <= 0 {
		return
	}
	every(ctx, r.cfg.Logger, "retention", r.cfg.RetentionInterval, func(ctx context.Context) error {
		n, err := r.purgeOld(ctx)
		if n > 0 {
			r.cfg.Logger.Info("purged records that were sent long ago", zap.Int64("rows", n), zap.Duration("retention", r.cfg.Retention))
		}
		return err
	})
}

// purgeOld deletes the records in SUCCESS that were made and sent longer than the retention ago, by the database's
// present time, from the lowest id up to the first batch of records that are all younger. Records in other states are
// passed over, whatever their age. It keeps no position: what is interrupted is found again from the start, and
// several relays may do it at once.
func (r *Relay) purgeOld(ctx context.Context) (total int64, err error) {
	for after := int64(0); ; {
		began := time.Now()
		rows, err := r.findOld(ctx, after)
		if err != nil || len(rows) == 0 {
			return total, err
		}
		after = rows[len(rows)-1].id
		var old []int64
		young := 0
		for _, row := range rows {
			switch {
			case row.old:
				old = append(old, row.id)
			case row.young:
				young++
			}
		}
		if young == len(rows) {
			return total, nil
		}
		if len(old) > 0 {
			n, err := r.deleteOld(ctx, old)
			total += n
			r.metrics.purged.Add(float64(n))
			if err != nil {
				return total, err
			}
		}
		if len(rows) < purgeBatch || !sleep(ctx, max(purgeRest, time.Since(began))) {
			return total, nil
		}
	}
}

func (r *Relay) findOld(ctx context.Context, after int64) ([]oldRow, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StatementTimeout)
	defer cancel()
	return r.store.oldest(ctx, r.cfg.Retention, after)
}

func (r *Relay) deleteOld(ctx context.Context, ids []int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.StatementTimeout)
	defer cancel()
	return r.store.purge(ctx, r.cfg.Retention, ids)
}
