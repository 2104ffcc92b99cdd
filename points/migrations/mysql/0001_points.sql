-- +goose Up
CREATE TABLE IF NOT EXISTS t_points_record (
    id            BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    msg_id        VARCHAR(80) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    user_id       BIGINT      NOT NULL,
    order_no      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    type          VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    points        BIGINT      NOT NULL,
    balance_after BIGINT      NOT NULL,
    facts_hash    CHAR(64)    CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at    DATETIME(6) NOT NULL,
    UNIQUE KEY uk_msg_id (msg_id),
    UNIQUE KEY uk_order_type (order_no, type),
    KEY idx_user_id (user_id, id),
    CONSTRAINT ck_points_record_type CHECK (type IN ('EARN', 'REVERSE'))
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS t_points_account (
    user_id BIGINT      NOT NULL PRIMARY KEY,
    balance BIGINT      NOT NULL,
    version BIGINT      NOT NULL,
    status  VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    CONSTRAINT ck_points_account_status CHECK (status IN ('ACTIVE', 'FROZEN'))
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS t_dead_letter (
    consumer        VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    msg_id          VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    topic           VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason          VARCHAR(1024) CHARACTER SET utf8mb4 NOT NULL,
    attempts        INT          NOT NULL,
    first_failed_at DATETIME(6)  NOT NULL,
    last_failed_at  DATETIME(6)  NOT NULL,
    payload         LONGBLOB     NOT NULL,
    state           VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (consumer, msg_id)
) ENGINE = InnoDB;

-- +goose Down
DROP TABLE IF EXISTS t_dead_letter;
DROP TABLE IF EXISTS t_points_account;
DROP TABLE IF EXISTS t_points_record;
