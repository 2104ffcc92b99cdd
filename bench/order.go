package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/halfbox/halfbox"
)

// order is the business row, and its event.
type order struct {
	no    string
	event halfbox.Event
}

func newOrder() (order, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return order{}, err
	}
	data, err := json.Marshal(map[string]any{"order_no": id, "user_id": 7, "amount_cents": 9990})
	if err != nil {
		return order{}, err
	}
	return order{no: id.String(), event: halfbox.Event{
		Type: "order.created", Source: "bench", Subject: id.String(), Time: time.Now().UTC(), DataSchema: "urn:halfbox:schema:bench:1",
		AggregateVersion: 1, PartitionKey: id.String(), Data: data,
	}}, nil
}

// attempt encodes the order's event for a new attempt, for a peer that brings no writer of its own kind.
func (o order) attempt() (at halfbox.Attempt, body []byte, err error) {
	if at, err = halfbox.NewAttempt(halfbox.DeliveryOutbox); err != nil {
		return at, nil, err
	}
	body, err = halfbox.Encode(o.event, at.MsgID)
	return at, body, err
}

const (
	createOrders = `CREATE TABLE t_bench_order (
 id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, order_no VARCHAR(64) NOT NULL, user_id BIGINT NOT NULL,
 amount_cents BIGINT NOT NULL, msg_id VARCHAR(64) NOT NULL, UNIQUE KEY uk_order_no (order_no), UNIQUE KEY uk_msg_id (msg_id))`
	insertOrder = "INSERT INTO t_bench_order (order_no, user_id, amount_cents, msg_id) VALUES (?, 7, 9990, ?)"
)

// inTx is the transaction of a peer that brings none of its own.
func inTx(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		if rerr := tx.Rollback(); rerr != nil {
			return fmt.Errorf("%w (and rollback: %w)", err, rerr)
		}
		return err
	}
	return tx.Commit()
}
