-- +goose Up
CREATE TABLE t_progress (
    name        TEXT     NOT NULL PRIMARY KEY,
    position    TEXT     NOT NULL,
    claim_owner TEXT     NULL,
    lease_until DATETIME NULL
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
DROP TABLE t_progress;
