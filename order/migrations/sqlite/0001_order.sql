-- +goose Up
CREATE TABLE t_order (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    order_no        TEXT     NOT NULL,
    user_id         INTEGER  NOT NULL,
    amount_cents    INTEGER  NOT NULL,
    status          TEXT     NOT NULL CHECK (status IN ('CREATED', 'CANCELLED', 'VOID')),
    version         INTEGER  NOT NULL,
    msg_id          TEXT     NOT NULL,
    delivery        TEXT     NOT NULL,
    idempotency_key TEXT     NULL,
    request_hash    TEXT     NOT NULL,
    points_state    TEXT     NOT NULL CHECK (points_state IN ('PENDING', 'CREDITED', 'REVERSED', 'REJECTED')),
    created_at      DATETIME NOT NULL,
    updated_at      DATETIME NOT NULL
);
CREATE UNIQUE INDEX uk_order_no ON t_order (order_no);
CREATE UNIQUE INDEX uk_msg_id ON t_order (msg_id);
CREATE UNIQUE INDEX uk_idempotency ON t_order (user_id, idempotency_key);

-- +goose Down
DROP TABLE t_order;
