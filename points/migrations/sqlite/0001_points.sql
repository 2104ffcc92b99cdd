-- +goose Up
CREATE TABLE t_points_record (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    msg_id        TEXT     NOT NULL,
    user_id       INTEGER  NOT NULL,
    order_no      TEXT     NOT NULL,
    type          TEXT     NOT NULL CHECK (type IN ('EARN', 'REVERSE')),
    points        INTEGER  NOT NULL,
    balance_after INTEGER  NOT NULL,
    facts_hash    TEXT     NOT NULL,
    created_at    DATETIME NOT NULL
);
CREATE UNIQUE INDEX uk_msg_id ON t_points_record (msg_id);
CREATE UNIQUE INDEX uk_order_type ON t_points_record (order_no, type);
CREATE INDEX idx_user_id ON t_points_record (user_id, id);

CREATE TABLE t_points_account (
    user_id INTEGER NOT NULL PRIMARY KEY,
    balance INTEGER NOT NULL,
    version INTEGER NOT NULL,
    status  TEXT    NOT NULL CHECK (status IN ('ACTIVE', 'FROZEN'))
);

CREATE TABLE t_dead_letter (
    consumer        TEXT     NOT NULL,
    msg_id          TEXT     NOT NULL,
    topic           TEXT     NOT NULL,
    reason          TEXT     NOT NULL,
    attempts        INTEGER  NOT NULL,
    first_failed_at DATETIME NOT NULL,
    last_failed_at  DATETIME NOT NULL,
    payload         BLOB     NOT NULL,
    state           TEXT     NOT NULL,
    PRIMARY KEY (consumer, msg_id)
);

-- +goose Down
DROP TABLE t_dead_letter;
DROP TABLE t_points_account;
DROP TABLE t_points_record;
