-- +goose Up
CREATE TABLE IF NOT EXISTS t_order (
    id              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    order_no        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    user_id         BIGINT       NOT NULL,
    amount_cents    BIGINT       NOT NULL,
    status          VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version         BIGINT       NOT NULL,
    msg_id          CHAR(36)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    delivery        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    idempotency_key VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NULL,
    request_hash    CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    points_state    VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at      DATETIME(6)  NOT NULL,
    updated_at      DATETIME(6)  NOT NULL,
    UNIQUE KEY uk_order_no (order_no),
    UNIQUE KEY uk_msg_id (msg_id),
    UNIQUE KEY uk_idempotency (user_id, idempotency_key),
    CONSTRAINT ck_order_status CHECK (status IN ('CREATED', 'CANCELLED', 'VOID')),
    CONSTRAINT ck_order_points_state CHECK (points_state IN ('PENDING', 'CREDITED', 'REVERSED', 'REJECTED'))
) ENGINE = InnoDB;

-- +goose Down
DROP TABLE IF EXISTS t_order;
