package broker

import (
	"fmt"
	"time"

	"go.uber.org/zap"
)

// defaultMaxReconsume is used when the client names no maximum.
const defaultMaxReconsume = 16

// handleSendBack takes a message a consumer could not process: it goes to
// %RETRY%group after a delay, or to %DLQ%group when it had its attempts.
func (b *Broker) handleSendBack(r *request) {
	f := r.fields()
	sb := sendBack{
		group: f.need("group"), physical: f.num("offset", -1), level: f.num32("delayLevel", 0),
		max: f.num32("maxReconsumeTimes", defaultMaxReconsume),
	}
	if f.err == nil && !validTopic(retryPrefix+sb.group) {
		f.err = reject(respSystemError, fmt.Sprintf("consumer group %q is not a valid name", sb.group))
	}
	if f.err != nil {
		r.fail(f.err)
		return
	}
	record, err := b.store.message(sb.physical)
	if err != nil {
		r.fail(err)
		return
	}
	if record == nil {
		r.answer(respSystemError, fmt.Sprintf("look message by offset failed, %d", sb.physical), nil, nil)
		return
	}
	m, err := decodeMessage(record)
	if err != nil {
		r.fail(err)
		return
	}
	dead, delay := b.prepareSendBack(m, sb)
	b.store.submit(&write{
		op: "sendback", size: len(record),
		apply: func(tx *writeTx) error {
			if dead {
				return tx.append(m, 1)
			}
			return b.putDelayed(tx, m, b.nowMS()+delay.Milliseconds())
		},
		done: func(err error) {
			if err != nil {
				r.fail(err)
				return
			}
			if dead {
				b.log.Warn("message moved to the dead letter topic", zap.String("topic", m.topic),
					zap.String("uniq_key", m.props.value(propUniqKey)), zap.Int32("attempts", m.reconsumeTimes))
			}
			r.ok(nil, nil)
		},
	})
}

type sendBack struct {
	group    string
	physical int64
	level    int // 0: by attempt; negative: dead letter now
	max      int
}

// prepareSendBack turns a delivered message into its next copy. Bodies, born
// time and born host stay (RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack).
func (b *Broker) prepareSendBack(m *message, sb sendBack) (dead bool, delay time.Duration) {
	if _, ok := m.props.get(propRetryTopic); !ok {
		m.props = m.props.with(propRetryTopic, m.topic)
	}
	if _, ok := m.props.get(propOriginMessageID); !ok {
		m.props = m.props.with(propOriginMessageID, messageID(b.storeHost, m.physicalOffset))
	}
	m.queueID, m.storeHost = 0, b.storeHost
	if sb.level < 0 || int(m.reconsumeTimes) >= sb.max {
		m.topic = deadPrefix + sb.group
		m.props = m.props.without(propDelayLevel)
		return true, 0
	}
	level := sb.level
	if level == 0 {
		level = 3 + int(m.reconsumeTimes)
	}
	m.topic = retryPrefix + sb.group
	m.reconsumeTimes++
	return false, b.levelDelay(level)
}
