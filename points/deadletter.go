package points

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/halfbox/halfbox/internal/database"
)

// The widths of t_dead_letter's columns in characters.
const (
	maxReason       = 1024
	maxDeadLetterID = 128
)

// deadLetterID is the message's id, or its hash when a foreign producer chose one that the column cannot hold.
func deadLetterID(msgID string) string {
	if utf8.ValidString(msgID) && utf8.RuneCountInString(msgID) <= maxDeadLetterID {
		return msgID
	}
	sum := sha256.Sum256([]byte(msgID))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// bury keeps a message that can never be handled. A message buried before counts one attempt more.
func bury(ctx context.Context, db *database.DB, consumer string, m Message, reason string) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	reason = strings.ToValidUTF8(reason, "?")
	if r := []rune(reason); len(r) > maxReason {
		reason = string(r[:maxReason])
	}
	body := m.Body
	if body == nil {
		body = []byte{} // the column is NOT NULL
	}
	insert := `INSERT INTO t_dead_letter (consumer, msg_id, topic, reason, attempts, first_failed_at, last_failed_at, payload, state)
		VALUES (?, ?, ?, ?, 1, ?, ?, ?, 'DEAD') `
	if db.Dialect == database.MySQL {
		insert += "ON DUPLICATE KEY UPDATE attempts = attempts + 1, last_failed_at = VALUES(last_failed_at)"
	} else {
		insert += "ON CONFLICT (consumer, msg_id) DO UPDATE SET attempts = attempts + 1, last_failed_at = excluded.last_failed_at"
	}
	err := db.Write.WithContext(ctx).Exec(insert, consumer, deadLetterID(m.MsgID), m.Topic, reason, now, now, body).Error
	if err != nil {
		return fmt.Errorf("keep dead letter: %w", err)
	}
	return nil
}
