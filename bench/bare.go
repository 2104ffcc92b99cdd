package main

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/halfbox/halfbox/outbox"
)

// bare is the least that relays the same table: the relay's statements in a loop, and nothing for when something
// goes wrong. It is the ceiling.
type bare struct {
	site
}

func newBare(s site) (peer, error) { return &bare{site: s}, nil }

func (b *bare) setup(ctx context.Context) error { return b.db.Migrate(ctx, outbox.Migrations()) }

const bareInsert = `INSERT INTO t_event_record (msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version, partition_key,
 destination, payload, headers, status, retry_count, reclaim_count, next_retry_time, created_at)
 VALUES (?, 'bench', ?, ?, 'outbox', ?, 1, ?, ?, ?, '{}', 'WAIT', 0, 0, UTC_TIMESTAMP(6), ?)`

func (b *bare) publish(ctx context.Context, o order) error {
	at, body, err := o.attempt()
	if err != nil {
		return err
	}
	return inTx(ctx, b.db.SQL(), func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, insertOrder, o.no, at.MsgID); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, bareInsert, at.MsgID, o.event.Type, o.no, o.no, o.no, b.topic, body, time.Now().UTC())
		return err
	})
}

func (b *bare) relay(out *output) (func(context.Context) error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		for ctx.Err() == nil {
			n, err := b.round(ctx, out)
			if err == nil && n == 0 {
				err = pause(ctx, time.Millisecond)
			}
			if err != nil && ctx.Err() == nil {
				failed = err
				return
			}
		}
	})
	return func(context.Context) error {
		cancel()
		wg.Wait()
		return failed
	}, nil
}

type bareRow struct {
	id  int64
	no  string
	msg *primitive.Message
}

func (b *bare) round(ctx context.Context, out *output) (int, error) {
	rows, err := b.claim(ctx)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	ids, keys, msgs := make([]any, len(rows)), make([]string, len(rows)), make([]*primitive.Message, len(rows))
	for i, r := range rows {
		ids[i], keys[i], msgs[i] = r.id, r.no, r.msg
	}
	for err = out.send(ctx, keys, msgs...); errors.Is(err, errDown); err = out.send(ctx, keys, msgs...) {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
	if err != nil {
		return 0, err
	}
	_, err = b.db.SQL().ExecContext(ctx, "UPDATE t_event_record SET status = 'SUCCESS', lease_until = NULL, sent_at = UTC_TIMESTAMP(6) WHERE id IN ("+marks(len(ids))+
		") AND status = 'SENDING' AND claim_owner = 'bare'", ids...)
	return len(rows), err
}

func (b *bare) claim(ctx context.Context) (rows []bareRow, err error) {
	err = inTx(ctx, b.db.SQL(), func(tx *sql.Tx) error {
		rows, err = b.due(ctx, tx)
		if err != nil || len(rows) == 0 {
			return err
		}
		ids := make([]any, len(rows))
		for i, r := range rows {
			ids[i] = r.id
		}
		_, err = tx.ExecContext(ctx, "UPDATE t_event_record SET status = 'SENDING', claim_owner = 'bare', claimed_at = UTC_TIMESTAMP(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL 600 SECOND WHERE id IN ("+
			marks(len(ids))+")", ids...)
		return err
	})
	return rows, err
}

func (b *bare) due(ctx context.Context, tx *sql.Tx) (found []bareRow, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, msg_id, biz_no, payload FROM t_event_record FORCE INDEX (idx_status_next_retry)
 WHERE status = 'WAIT' AND sink = 'bench' AND next_retry_time <= UTC_TIMESTAMP(6) ORDER BY next_retry_time, id LIMIT ? FOR UPDATE SKIP LOCKED`, b.batch)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r bareRow
		var msgID string
		var body []byte
		if err := rows.Scan(&r.id, &msgID, &r.no, &body); err != nil {
			return nil, err
		}
		r.msg = primitive.NewMessage(b.topic, body).WithKeys([]string{r.no}).WithTag("order.created")
		r.msg.WithProperty(primitive.PropertyUniqueClientMessageIdKeyIndex, msgID)
		found = append(found, r)
	}
	return found, rows.Err()
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }
