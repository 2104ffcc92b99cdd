-- +goose Up
CREATE TABLE IF NOT EXISTS t_tx_log (
    tx_id      CHAR(36)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    state      VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    delivery   VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    biz_type   VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    biz_no     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    created_at DATETIME(6)  NOT NULL,
    CONSTRAINT ck_tx_log_state CHECK (state IN ('COMMITTED', 'VOID'))
) ENGINE = InnoDB;

-- +goose Down
DROP TABLE IF EXISTS t_tx_log;
