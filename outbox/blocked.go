package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/halfbox/halfbox/internal/database"
)

// The SQL of blocked keys.
const (
	// sqlDeadKeys finds the keys with dead letters, and the lowest version of them.
	sqlDeadKeys = `SELECT partition_key, MIN(aggregate_version), COUNT(*) FROM t_event_record {by due}
 WHERE status = 'FAIL' AND sink = ? AND partition_key > ? GROUP BY partition_key ORDER BY partition_key LIMIT ?`

	// sqlHead reads the first dead letter of a key.
	sqlHead = `SELECT * FROM (SELECT ? AS n, msg_id, event_type, last_error, first_error_at FROM t_event_record {by key}
 WHERE sink = ? AND partition_key = ? AND aggregate_version = ? AND status = 'FAIL' ORDER BY id LIMIT 1) AS h`

	// sqlBehind counts what is behind it, up to a limit.
	sqlBehind = `SELECT ? AS n, COUNT(*) FROM (SELECT 1 FROM t_event_record {by key}
 WHERE sink = ? AND partition_key = ? AND aggregate_version >= ? AND status IN ('WAIT', 'SENDING') LIMIT ?) AS w`
)

// maxBehindCounted is the largest BlockedKey.Waiting.
const maxBehindCounted = 1000

// BlockedKey is a key of an ordered sink that has a dead letter. Under HeadOfLineBlock it is sent nothing later until
// the dead letter was redriven; under HeadOfLinePark it goes on without it.
type BlockedKey struct {
	Key         string
	Version     int64 // of its first dead letter, like the next two
	MsgID       string
	EventType   string
	DeadLetters int64
	Waiting     int        // records behind the first dead letter that have not been sent, 1000 at most
	Since       *time.Time // the time of its first error, by the application's UTC clock
	LastError   string     // begins with the reason
}

// BlockedKeys returns the keys of an ordered sink that have dead letters, by key, after the key after (empty from the
// start). limit defaults to 100 and is at most 1000.
func BlockedKeys(ctx context.Context, db *database.DB, sink, after string, limit int) ([]BlockedKey, error) {
	if limit <= 0 {
		limit = 100
	}
	keys, err := newStore(db).blockedKeys(ctx, sink, after, min(limit, 1000), maxBehindCounted)
	if err != nil {
		return nil, fmt.Errorf("outbox blocked keys: %w", err)
	}
	return keys, nil
}

// deadKeys returns the keys with dead letters; of each Key, Version and DeadLetters are set.
func (s store) deadKeys(ctx context.Context, sink, after string, limit int) ([]BlockedKey, error) {
	return collect(s.db.Read.WithContext(ctx).Raw(s.dialect.Replace(sqlDeadKeys), sink, after, limit), func(rs *sql.Rows) (k BlockedKey, err error) {
		return k, rs.Scan(&k.Key, &k.Version, &k.DeadLetters)
	})
}

// blockedKeys counts what waits behind each key up to behind.
func (s store) blockedKeys(ctx context.Context, sink, after string, limit, behind int) ([]BlockedKey, error) {
	keys, err := s.deadKeys(ctx, sink, after, limit)
	if err != nil {
		return nil, err
	}
	for from := 0; from < len(keys); from += predecessorsAtOnce {
		if err := s.fillBlocked(ctx, sink, keys[from:min(from+predecessorsAtOnce, len(keys))], behind); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func (s store) fillBlocked(ctx context.Context, sink string, keys []BlockedKey, limit int) error {
	var heads, behind []string
	var headArgs, behindArgs []any
	for i, k := range keys {
		heads, behind = append(heads, s.dialect.Replace(sqlHead)), append(behind, s.dialect.Replace(sqlBehind))
		headArgs = append(headArgs, i, sink, k.Key, k.Version)
		behindArgs = append(behindArgs, i, sink, k.Key, k.Version, limit)
	}
	_, err := collect(s.db.Read.WithContext(ctx).Raw(strings.Join(heads, "\nUNION ALL\n"), headArgs...), func(rs *sql.Rows) (struct{}, error) {
		var n int
		var k BlockedKey
		var lastError sql.NullString
		if err := rs.Scan(&n, &k.MsgID, &k.EventType, &lastError, &k.Since); err != nil {
			return struct{}{}, err
		}
		at := &keys[n]
		at.MsgID, at.EventType, at.LastError, at.Since = k.MsgID, k.EventType, lastError.String, k.Since
		return struct{}{}, nil
	})
	if err != nil {
		return err
	}
	_, err = collect(s.db.Read.WithContext(ctx).Raw(strings.Join(behind, "\nUNION ALL\n"), behindArgs...), func(rs *sql.Rows) (struct{}, error) {
		var n, count int
		if err := rs.Scan(&n, &count); err != nil {
			return struct{}{}, err
		}
		keys[n].Waiting = count
		return struct{}{}, nil
	})
	return err
}

// blockedGauge bounds what the gauge of blocked keys counts.
const blockedGauge = 1000

// countBlocked returns how many keys are held by a dead letter, up to blockedGauge.
func (s store) countBlocked(ctx context.Context, sink string) (n int, err error) {
	keys, err := s.blockedKeys(ctx, sink, "", blockedGauge, 1) // one that waits is enough
	for _, k := range keys {
		if k.Waiting > 0 {
			n++
		}
	}
	return n, err
}
