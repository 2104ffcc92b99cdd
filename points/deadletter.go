package points

import (
	"context"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/deadletter"
)

// bury keeps a message that can never be handled. A message buried before counts one attempt more.
func bury(ctx context.Context, db *database.DB, consumer string, m Message, reason string) error {
	return deadletter.Keep(db.Write.WithContext(ctx), db.Dialect, deadletter.Letter{
		Consumer: consumer, MsgID: m.MsgID, Topic: m.Topic, Reason: reason, Body: m.Body,
	})
}
