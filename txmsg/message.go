package txmsg

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

var (
	// ErrTooLarge means that the event's body is over Config.MaxBody, or over the broker's limit.
	ErrTooLarge = errors.New("txmsg: message is too large")
	// ErrUnsafe means that the broker stored the half message, but not as safely as it was configured to: it was not
	// flushed in time, or not copied to a slave. The local transaction was not run, and the half message is rolled
	// back. The error also wraps halfbox.ErrUnavailable.
	ErrUnsafe = errors.New("txmsg: half message stored less safely than configured")
)

// message makes the half message of one attempt, or says why no broker could ever take it. It is never sent twice: the
// client leaves marks on it.
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
		topic = p.cfg.Topic // New has checked it
	} else if err := rocketmq.CheckTopic(topic); err != nil {
		return nil, fmt.Errorf("txmsg: destination of event %s: %w", ev.Type, err)
	}
	m := primitive.NewMessage(topic, body)
	// Encode has checked what the client does not: reserved names, separators and sizes.
	for name, value := range ev.Headers {
		m.WithProperty(name, value)
	}
	m.WithProperty(halfbox.HeaderContentType, halfbox.ContentType)
	if ev.TraceParent != "" {
		m.WithProperty(halfbox.HeaderTraceParent, ev.TraceParent)
	}
	m.WithProperty(primitive.PropertyUniqueClientMessageIdKeyIndex, msgID)
	m.WithProperty(primitive.PropertyTags, ev.Type)
	m.WithProperty(primitive.PropertyKeys, ev.Subject)
	return m, nil
}

// textRequestTimeout is the client's word for a deadline; it wraps its own error in places.
const textRequestTimeout = "request timeout"

// halfError turns the client's verdict on a half message into an error; nil means that it was stored.
func halfError(res *primitive.TransactionSendResult, err error) error {
	if err == nil {
		return statusError(res.Status)
	}
	code, answered := rocketmq.AnswerCode(err)
	switch {
	case !answered && strings.Contains(err.Error(), textRequestTimeout):
		return fmt.Errorf("%w: %w: %w", errNotStored, errDeadline, err)
	case !answered:
		return fmt.Errorf("%w: %w", errNotStored, err)
	case code == rocketmq.CodeMessageIllegal:
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return fmt.Errorf("%w: %s%w", errNotStored, remedy(code), err)
}

// statusError judges an answer that the client takes for a success: all of these but the first were stored, somehow.
// The client has not run the local transaction then, and has sent ROLLBACK; a ROLLBACK that is lost is repaired by the
// half message's check, which finds no row.
func statusError(s primitive.SendStatus) error {
	if s == primitive.SendOK {
		return nil
	}
	name, known := map[primitive.SendStatus]string{
		primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT, its disk is slow",
		primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT, its slave is slow",
		primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE, a SYNC_MASTER without a slave",
	}[s]
	if !known {
		name = fmt.Sprintf("send status %d", s)
	}
	return fmt.Errorf("%w: %w: the broker answers %s", errNotStored, ErrUnsafe, name)
}

// remedy explains the answers that an operator can do something about.
func remedy(code int) string {
	switch code {
	case rocketmq.CodeSystemBusy, rocketmq.CodeFlowControl:
		return "the broker is overloaded: "
	case rocketmq.CodeNoPermission:
		return "the broker or the topic is read-only, refuses transactions, or these credentials may not write: "
	case rocketmq.CodeTopicNotExist:
		return "the topic does not exist and the broker does not create it: "
	}
	return ""
}
