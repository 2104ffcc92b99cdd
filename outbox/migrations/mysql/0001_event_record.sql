-- +goose Up
CREATE TABLE IF NOT EXISTS t_event_record (
    id                BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    msg_id            VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    sink              VARCHAR(64)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    event_type        VARCHAR(128)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    biz_no            VARCHAR(128)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    delivery          VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    aggregate_id      VARCHAR(128)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    aggregate_version BIGINT        NOT NULL,
    partition_key     VARCHAR(128)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    destination       VARCHAR(255)  CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin NOT NULL,
    payload           LONGBLOB      NOT NULL,
    headers           JSON          NOT NULL,
    status            VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    retry_count       INT           NOT NULL DEFAULT 0,
    reclaim_count     INT           NOT NULL DEFAULT 0,
    next_retry_time   DATETIME(6)   NOT NULL,
    claim_owner       VARCHAR(96)   CHARACTER SET ascii COLLATE ascii_bin NULL,
    claimed_at        DATETIME(6)   NULL,
    lease_until       DATETIME(6)   NULL,
    first_error_at    DATETIME(6)   NULL,
    last_error        VARCHAR(1024) CHARACTER SET utf8mb4 NULL,
    created_at        DATETIME(6)   NOT NULL,
    sent_at           DATETIME(6)   NULL,
    UNIQUE KEY uk_msg_sink (msg_id, sink),
    UNIQUE KEY uk_biz_event_sink (biz_no, event_type, sink),
    KEY idx_status_next_retry (status, sink, next_retry_time, id),
    KEY idx_key_version (sink, partition_key, aggregate_version),
    CONSTRAINT ck_event_record_status CHECK (status IN ('WAIT', 'SENDING', 'SUCCESS', 'FAIL')),
    CONSTRAINT ck_event_record_lease CHECK (status <> 'SENDING' OR (claim_owner IS NOT NULL AND lease_until IS NOT NULL))
) ENGINE = InnoDB;

-- +goose Down
DROP TABLE IF EXISTS t_event_record;
