-- +goose Up
CREATE TABLE IF NOT EXISTS t_progress (
    name        VARCHAR(255)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    position    VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    claim_owner VARCHAR(128)  CHARACTER SET ascii COLLATE ascii_bin NULL,
    lease_until DATETIME(6)   NULL
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
DROP TABLE IF EXISTS t_progress;
