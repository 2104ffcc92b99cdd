-- +goose Up
CREATE TABLE t_audit_log (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id     TEXT     NOT NULL,
    action     TEXT     NOT NULL,
    actor      TEXT     NOT NULL,
    reason     TEXT     NOT NULL,
    msg_id     TEXT     NOT NULL,
    sink       TEXT     NOT NULL,
    event_type TEXT     NOT NULL,
    biz_no     TEXT     NOT NULL,
    detail     TEXT     NULL,
    created_at DATETIME NOT NULL
);
CREATE INDEX idx_audit_msg_id ON t_audit_log (msg_id, id);
CREATE INDEX idx_audit_run_id ON t_audit_log (run_id, id);

-- +goose Down
DROP TABLE t_audit_log;
