// Package deadletter keeps messages that can never be handled, in the table t_dead_letter of the database of whoever
// could not handle them. Nothing here deletes one.
package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

// The widths of t_dead_letter's columns in characters.
const (
	maxReason = 1024
	maxMsgID  = 128
)

// Letter is a message that can never be handled, and why.
type Letter struct {
	// Consumer is who could not handle it.
	Consumer string
	MsgID    string
	Topic    string
	Reason   string
	Body     []byte
}

// Keep inserts the letter with tx, a transaction or a pool of a database of this dialect. A letter that the consumer
// kept before counts one attempt more.
func Keep(tx *gorm.DB, dialect database.Dialect, l Letter) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	reason := strings.ToValidUTF8(l.Reason, "?")
	if r := []rune(reason); len(r) > maxReason {
		reason = string(r[:maxReason])
	}
	body := l.Body
	if body == nil {
		body = []byte{} // the column is NOT NULL
	}
	insert := `INSERT INTO t_dead_letter (consumer, msg_id, topic, reason, attempts, first_failed_at, last_failed_at, payload, state)
		VALUES (?, ?, ?, ?, 1, ?, ?, ?, 'DEAD') `
	if dialect == database.MySQL {
		insert += "ON DUPLICATE KEY UPDATE attempts = attempts + 1, last_failed_at = VALUES(last_failed_at)"
	} else {
		insert += "ON CONFLICT (consumer, msg_id) DO UPDATE SET attempts = attempts + 1, last_failed_at = excluded.last_failed_at"
	}
	if err := tx.Exec(insert, l.Consumer, id(l.MsgID), l.Topic, reason, now, now, body).Error; err != nil {
		return fmt.Errorf("keep dead letter: %w", err)
	}
	return nil
}

// id is the message's id, or its hash when a foreign producer chose one that the column cannot hold.
func id(msgID string) string {
	if utf8.ValidString(msgID) && utf8.RuneCountInString(msgID) <= maxMsgID {
		return msgID
	}
	sum := sha256.Sum256([]byte(msgID))
	return "sha256:" + hex.EncodeToString(sum[:])
}
