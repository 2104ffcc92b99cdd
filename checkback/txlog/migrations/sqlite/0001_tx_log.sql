-- +goose Up
CREATE TABLE t_tx_log (
    tx_id      TEXT     NOT NULL PRIMARY KEY,
    state      TEXT     NOT NULL CHECK (state IN ('COMMITTED', 'VOID')),
    delivery   TEXT     NOT NULL,
    biz_type   TEXT     NOT NULL,
    biz_no     TEXT     NOT NULL,
    created_at DATETIME NOT NULL
);

-- +goose Down
DROP TABLE t_tx_log;
