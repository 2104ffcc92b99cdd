package broker

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// clientPropertiesSize bounds what a client sends; the rest of the wire limit
// is left for what the broker adds (REAL_TOPIC, TRANSACTION_CHECK_TIMES, ...).
const clientPropertiesSize = maxPropertiesSize - 1024

// sendHeader is the header of SEND_MESSAGE in both spellings.
type sendHeader struct {
	producerGroup     string
	topic             string
	queueID           int
	sysFlag           int
	bornTime          int64
	flag              int
	reconsumeTimes    int
	maxReconsumeTimes int
	props             properties
	propsSize         int
}

// sendHeaderKeys are the one-letter keys of SEND_MESSAGE_V2 and batches.
func sendHeaderKeys(code int) func(long, short string) string {
	if code == codeSendMessage {
		return func(long, _ string) string { return long }
	}
	return func(_, short string) string { return short }
}

func decodeSendHeader(cmd *command) (*sendHeader, error) {
	key, f := sendHeaderKeys(cmd.Code), &extReader{ext: cmd.Ext}
	h := &sendHeader{
		producerGroup:     f.str(key("producerGroup", "a")),
		topic:             f.need(key("topic", "b")),
		queueID:           f.num32(key("queueId", "e"), -1),
		sysFlag:           f.num32(key("sysFlag", "f"), 0),
		bornTime:          f.num(key("bornTimestamp", "g"), 0),
		flag:              f.num32(key("flag", "h"), 0),
		reconsumeTimes:    f.num32(key("reconsumeTimes", "j"), 0),
		maxReconsumeTimes: f.num32(key("maxReconsumeTimes", "l"), 0),
	}
	props := f.str(key("properties", "i"))
	h.props, h.propsSize = parseProperties(props), len(props)
	return h, f.err
}

// isHalf: RocketMQ 5 looks at the property, older ones at the flag; the Go
// client sets both.
func (h *sendHeader) isHalf() bool {
	prepared, _ := strconv.ParseBool(h.props.value(propTransaction))
	return prepared || h.sysFlag&sysFlagTransactionMask == sysFlagTransactionHalf
}

func (b *Broker) handleSend(r *request) {
	h, err := decodeSendHeader(r.cmd)
	if err == nil {
		err = b.checkSend(h, len(r.cmd.Body))
	}
	if err != nil {
		r.fail(err)
		return
	}
	m := b.newMessage(r.c, h, r.cmd.Body, h.props, h.flag)
	switch {
	case h.isHalf():
		b.storeHalf(r, m)
		return
	case strings.HasPrefix(m.topic, retryPrefix) && overRetried(h):
		m.topic, m.queueID = deadPrefix+strings.TrimPrefix(m.topic, retryPrefix), 0
		m.props = m.props.without(propDelayLevel)
	}
	due, delayed := b.dueTime(m)
	op := "append"
	if delayed {
		op = "delay"
	}
	b.store.submit(&write{
		op: op, size: len(m.body),
		apply: func(tx *writeTx) error {
			if delayed {
				return b.putDelayed(tx, m, due)
			}
			return tx.append(m, b.newTopicQueues(m.topic))
		},
		done: func(err error) { b.answerSend(r, err, m) },
	})
}

// checkSend refuses what RocketMQ's SendMessageProcessor refuses, with its codes.
func (b *Broker) checkSend(h *sendHeader, bodySize int) error {
	if !sendable(h.topic) {
		return reject(respSystemError, fmt.Sprintf("the topic[%s] is illegal or conflicts with a system topic", h.topic))
	}
	if h.propsSize > clientPropertiesSize {
		return reject(respMessageIllegal, fmt.Sprintf("the message properties are illegal: %d bytes, %d allowed", h.propsSize, clientPropertiesSize))
	}
	if bodySize+h.propsSize > b.cfg.MaxMessageSize {
		return reject(respMessageIllegal, fmt.Sprintf("the message is illegal: %d bytes, %d allowed", bodySize+h.propsSize, b.cfg.MaxMessageSize))
	}
	info := b.store.topic(h.topic)
	queues := b.newTopicQueues(h.topic)
	switch {
	case info == nil && b.cfg.DisableTopicAutoCreate && !oneQueue(h.topic):
		return reject(respTopicNotExist, fmt.Sprintf("topic[%s] not exist", h.topic))
	case info != nil && info.Perm&permWrite == 0:
		return reject(respNoPermission, fmt.Sprintf("sending to topic[%s] is forbidden", h.topic))
	case info != nil:
		queues = info.Write
	}
	if h.queueID < 0 {
		h.queueID = int(b.hashSeed.Add(1)) % queues
	}
	if h.queueID >= queues {
		return reject(respSystemError, fmt.Sprintf("request queueId[%d] is illegal, topic[%s] has %d queues", h.queueID, h.topic, queues))
	}
	return nil
}

// overRetried: the client fell back to sending a retry itself (request 36
// failed) and the message has had its attempts.
func overRetried(h *sendHeader) bool {
	times, limit := h.reconsumeTimes, h.maxReconsumeTimes
	if n, err := strconv.Atoi(h.props.value(propReconsumeTime)); err == nil {
		times = max(times, n)
	}
	if n, err := strconv.Atoi(h.props.value(propMaxReconsumeTimes)); err == nil {
		limit = n
	}
	if limit <= 0 {
		limit = defaultMaxReconsume
	}
	return times >= limit
}

func (b *Broker) newMessage(c *conn, h *sendHeader, body []byte, props properties, flag int) *message {
	born := h.bornTime
	if born <= 0 {
		born = b.nowMS()
	}
	return &message{
		topic: h.topic, queueID: h.queueID, flag: int32(flag),
		sysFlag: int32(h.sysFlag &^ sysFlagTransactionMask), bornTime: born, bornHost: c.host,
		storeHost: b.storeHost, reconsumeTimes: int32(h.reconsumeTimes), body: body, props: props,
	}
}

func (b *Broker) nowMS() int64 { return b.cfg.Hooks.Now().UnixMilli() }

// answerSend answers a single message or a batch.
func (b *Broker) answerSend(r *request, err error, stored ...*message) {
	if err != nil {
		r.fail(err)
		return
	}
	ids := make([]string, len(stored))
	for i, m := range stored {
		ids[i] = messageID(b.storeHost, m.physicalOffset)
	}
	first := stored[0]
	ext := map[string]string{
		"msgId":       strings.Join(ids, ","),
		"queueId":     strconv.Itoa(first.queueID),
		"queueOffset": strconv.FormatInt(first.queueOffset, 10),
		"MSG_REGION":  "DefaultRegion",
		"TRACE_ON":    "true",
	}
	if id := first.props.value(propUniqKey); id != "" && len(stored) == 1 {
		ext["transactionId"] = id
	}
	r.ok(ext, nil)
}

func (b *Broker) handleSendBatch(r *request) {
	h, err := decodeSendHeader(r.cmd)
	if err == nil {
		err = b.checkSend(h, len(r.cmd.Body))
	}
	if err == nil && (strings.HasPrefix(h.topic, retryPrefix) || h.isHalf()) {
		err = reject(respMessageIllegal, "a batch of retries or half messages is not supported")
	}
	if err != nil {
		r.fail(err)
		return
	}
	items, err := decodeBatch(r.cmd.Body)
	if err != nil {
		r.protocolError(err)
		return
	}
	batch := make([]*message, len(items))
	for i, item := range items {
		batch[i] = b.newMessage(r.c, h, item.body, item.props, int(item.flag))
		if err := checkBatchItem(item); err != nil {
			r.fail(err)
			return
		}
	}
	b.store.submit(&write{
		op: "append", size: len(r.cmd.Body),
		apply: func(tx *writeTx) error {
			for _, m := range batch {
				if err := tx.append(m, b.newTopicQueues(m.topic)); err != nil {
					return fatal(err)
				}
			}
			return nil
		},
		done: func(err error) { b.answerSend(r, err, batch...) },
	})
}

func checkBatchItem(item batchItem) error {
	for _, p := range item.props {
		switch p.key {
		case propDelayLevel, propTimerDeliverMS, propTimerDelayMS, propTimerDelaySec:
			return reject(respMessageIllegal, "a delayed message in a batch is not supported")
		case propTransaction:
			return reject(respMessageIllegal, "a half message in a batch is not supported")
		}
	}
	if size := len(item.props.String()); size > clientPropertiesSize {
		return reject(respMessageIllegal, fmt.Sprintf("the message properties are illegal: %d bytes, %d allowed", size, clientPropertiesSize))
	}
	return nil
}

// dueTime returns when a delayed message is due, in Unix milliseconds by the
// broker's clock.
func (b *Broker) dueTime(m *message) (due int64, delayed bool) {
	if level, err := strconv.Atoi(m.props.value(propDelayLevel)); err == nil && level > 0 {
		return b.nowMS() + b.levelDelay(level).Milliseconds(), true
	}
	for key, base := range map[string]int64{propTimerDeliverMS: 0, propTimerDelayMS: b.nowMS(), propTimerDelaySec: b.nowMS()} {
		n, err := strconv.ParseInt(m.props.value(key), 10, 64)
		if err != nil || n <= 0 {
			continue
		}
		if key == propTimerDelaySec {
			n = min(n, math.MaxInt64/1_000_000) * 1000
		}
		return base + min(n, math.MaxInt64/4), true
	}
	return 0, false
}

func (b *Broker) levelDelay(level int) time.Duration {
	return b.cfg.DelayLevels[min(level, len(b.cfg.DelayLevels))-1]
}
