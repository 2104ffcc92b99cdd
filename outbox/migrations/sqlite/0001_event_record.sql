-- +goose Up
CREATE TABLE t_event_record (
    id                INTEGER PRIMARY KEY AUTOINCREMENT,
    msg_id            TEXT     NOT NULL,
    sink              TEXT     NOT NULL,
    event_type        TEXT     NOT NULL,
    biz_no            TEXT     NOT NULL,
    delivery          TEXT     NOT NULL,
    aggregate_id      TEXT     NOT NULL,
    aggregate_version INTEGER  NOT NULL,
    partition_key     TEXT     NOT NULL,
    destination       TEXT     NOT NULL,
    payload           BLOB     NOT NULL,
    headers           TEXT     NOT NULL,
    status            TEXT     NOT NULL CHECK (status IN ('WAIT', 'SENDING', 'SUCCESS', 'FAIL')),
    retry_count       INTEGER  NOT NULL DEFAULT 0,
    reclaim_count     INTEGER  NOT NULL DEFAULT 0,
    next_retry_time   DATETIME NOT NULL,
    claim_owner       TEXT     NULL,
    claimed_at        DATETIME NULL,
    lease_until       DATETIME NULL,
    first_error_at    DATETIME NULL,
    last_error        TEXT     NULL,
    created_at        DATETIME NOT NULL,
    sent_at           DATETIME NULL,
    CHECK (status <> 'SENDING' OR (claim_owner IS NOT NULL AND lease_until IS NOT NULL))
);
CREATE UNIQUE INDEX uk_msg_sink ON t_event_record (msg_id, sink);
CREATE UNIQUE INDEX uk_biz_event_sink ON t_event_record (biz_no, event_type, sink);
CREATE INDEX idx_status_next_retry ON t_event_record (status, sink, next_retry_time, id);
CREATE INDEX idx_key_version ON t_event_record (sink, partition_key, aggregate_version);

-- +goose Down
DROP TABLE t_event_record;
