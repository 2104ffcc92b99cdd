package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/halfbox/halfbox/internal/database"
)

// The SQL of the questions asked about the outbox. {age} is the age of a record in microseconds: the database's
// time less created_at.
const (
	sqlCounts = `SELECT status, sink, COUNT(*), MIN(id) FROM t_event_record {by due} GROUP BY status, sink`

	// sqlBacklog is sqlCounts without the records that are done, whose number only grows.
	sqlBacklog = `SELECT status, sink, COUNT(*), MIN(id) FROM t_event_record {by due}
 WHERE status IN ('FAIL', 'SENDING', 'WAIT') GROUP BY status, sink`

	sqlOverdue = `SELECT COUNT(*) FROM t_event_record {by due} WHERE status = 'SENDING' AND lease_until <= {now}`

	sqlAges = `SELECT id, {age} FROM t_event_record WHERE id IN ?`
)

func ageMicros(d database.Dialect) string {
	if d == database.MySQL {
		return "TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6))"
	}
	return "CAST((julianday('now') - julianday(created_at)) * 86400000000 AS INTEGER)"
}

// Count is the number of records of one sink in one state.
type Count struct {
	Sink   string
	Status Status
	N      int64
}

// Snapshot is what the outbox holds.
type Snapshot struct {
	Counts []Count
	// OldestUnsent is the age of the oldest record in WAIT or SENDING per sink: the database's present time less
	// created_at, never negative. A sink without such records is not in it.
	OldestUnsent map[string]time.Duration
	// Overdue is the number of SENDING records whose lease has run out and that no relay has reclaimed yet.
	Overdue int64
}

// Stats counts the records of every sink and state. Done records are counted too, so it reads an index as long as
// the table.
func Stats(ctx context.Context, db *database.DB) (Snapshot, error) {
	return newStore(db).stats(ctx, sqlCounts)
}

func (s store) stats(ctx context.Context, countSQL string) (Snapshot, error) {
	st := Snapshot{OldestUnsent: map[string]time.Duration{}}
	oldest := map[string]int64{} // sink -> lowest unsent id
	counts, err := collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(countSQL)), func(rs *sql.Rows) (c Count, err error) {
		var first int64
		if err := rs.Scan(&c.Status, &c.Sink, &c.N, &first); err != nil {
			return c, err
		}
		if c.Status == StatusWait || c.Status == StatusSending {
			if old, ok := oldest[c.Sink]; !ok || first < old {
				oldest[c.Sink] = first
			}
		}
		return c, nil
	})
	if err != nil {
		return Snapshot{}, fmt.Errorf("outbox stats: %w", err)
	}
	st.Counts = counts
	if err := s.ages(ctx, oldest, st.OldestUnsent); err != nil {
		return Snapshot{}, fmt.Errorf("outbox stats: %w", err)
	}
	if err := s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlOverdue)).Scan(&st.Overdue).Error; err != nil {
		return Snapshot{}, fmt.Errorf("outbox stats: %w", err)
	}
	return st, nil
}

func (s store) ages(ctx context.Context, oldest map[string]int64, into map[string]time.Duration) error {
	if len(oldest) == 0 {
		return nil
	}
	want := make([]int64, 0, len(oldest))
	for _, id := range oldest {
		want = append(want, id)
	}
	type age struct{ id, micros int64 }
	ages, err := collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlAges), sorted(want)), func(rs *sql.Rows) (a age, err error) {
		return a, rs.Scan(&a.id, &a.micros)
	})
	if err != nil {
		return err
	}
	for sink, id := range oldest {
		for _, a := range ages {
			if a.id == id {
				into[sink] = max(0, time.Duration(a.micros)*time.Microsecond)
			}
		}
	}
	return nil
}

func sorted(ids []int64) []int64 {
	out := slices.Clone(ids)
	slices.Sort(out)
	return out
}
