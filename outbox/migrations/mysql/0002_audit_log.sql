-- +goose Up
CREATE TABLE IF NOT EXISTS t_audit_log (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    run_id     VARCHAR(36)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    action     VARCHAR(32)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    actor      VARCHAR(128)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    reason     VARCHAR(512)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    msg_id     VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sink       VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    event_type VARCHAR(128)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    biz_no     VARCHAR(128)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    detail     VARCHAR(1024) CHARACTER SET utf8mb4 NULL,
    created_at DATETIME(6)   NOT NULL,
    KEY idx_msg_id (msg_id, id),
    KEY idx_run_id (run_id, id)
) ENGINE = InnoDB;

-- +goose Down
DROP TABLE IF EXISTS t_audit_log;
