package txmsg

import (
	"errors"
	"fmt"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

// ErrTooLarge means that the event's body is over Config.MaxBody, or over the broker's limit.
var ErrTooLarge = errors.New("txmsg: message is too large")

// message makes the half message of one attempt. It is never sent twice: the client leaves marks on it.
func (p *Producer) message(ev halfbox.Event, msgID string) (*primitive.Message, error) {
	body, err := halfbox.Encode(ev, msgID)
	if err != nil {
		return nil, err
	}
	if len(body) > p.cfg.MaxBody {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(body), p.cfg.MaxBody)
	}
	topic := ev.Destination
	if topic == "" {
		topic = p.cfg.Topic
	}
	m := primitive.NewMessage(topic, body)
	for name, value := range map[string]string{
		primitive.PropertyUniqueClientMessageIdKeyIndex: msgID,
		primitive.PropertyTags:                          ev.Type,
		primitive.PropertyKeys:                          ev.Subject,
	} {
		m.WithProperty(name, value) // Encode has checked what the client does not
	}
	return m, nil
}

// halfError turns the client's verdict on a half message into an error; nil means that it was stored.
func halfError(res *primitive.TransactionSendResult, err error) error {
	if err != nil {
		if code, ok := rocketmq.AnswerCode(err); ok && code == rocketmq.CodeMessageIllegal {
			return fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		return fmt.Errorf("%w: %w", errNotStored, err)
	}
	if res.Status != primitive.SendOK {
		// Stored, but not as safely as the broker was told to: the client has rolled it back already.
		return fmt.Errorf("%w safely: send status %d", errNotStored, res.Status)
	}
	return nil
}
