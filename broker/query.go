package broker

import (
	"fmt"
	"math"
	"strconv"
)

// queueOf reads topic and queueId. A queue that does not exist is an error
// unless the topic is one that exists whenever asked for.
func (b *Broker) queueOf(r *request, f *extReader) (queueKey, bool) {
	topic, queue := f.need("topic"), f.num32("queueId", -1)
	if f.err != nil {
		r.fail(f.err)
		return queueKey{}, false
	}
	info := b.store.topic(topic)
	if info == nil && oneQueue(topic) {
		return queueKey{}, true // of topic 0, which no topic is: an empty range
	}
	if info == nil {
		r.answer(respTopicNotExist, fmt.Sprintf("topic[%s] not exist", topic), nil, nil)
		return queueKey{}, false
	}
	if queue < 0 || queue >= info.queues() {
		r.answer(respSystemError, fmt.Sprintf("queueId[%d] is illegal, topic:[%s]", queue, topic), nil, nil)
		return queueKey{}, false
	}
	return info.key(queue), true
}

func (r *request) offset(n int64) {
	r.ok(map[string]string{"offset": strconv.FormatInt(n, 10)}, nil)
}

func (b *Broker) handleMaxOffset(r *request) {
	if key, ok := b.queueOf(r, r.fields()); ok {
		r.offset(b.store.queueRange(key).max)
	}
}

func (b *Broker) handleMinOffset(r *request) {
	if key, ok := b.queueOf(r, r.fields()); ok {
		r.offset(b.store.queueRange(key).min)
	}
}

// handleSearchOffset answers the first offset stored at or after a time; the
// end of the queue when there is none.
func (b *Broker) handleSearchOffset(r *request) {
	f := r.fields()
	ms := f.num("timestamp", 0)
	key, ok := b.queueOf(r, f)
	if !ok {
		return
	}
	offset, err := b.store.searchOffset(key, ms)
	if err != nil {
		r.fail(err)
		return
	}
	r.offset(offset)
}

func (b *Broker) handleViewMessage(r *request) {
	f := r.fields()
	physical := f.num("offset", -1)
	if f.err != nil {
		r.fail(f.err)
		return
	}
	record, err := b.store.message(physical)
	switch {
	case err != nil:
		r.fail(err)
	case record == nil:
		r.answer(respSystemError, fmt.Sprintf("can not find message by the offset, %d", physical), nil, nil)
	default:
		r.ok(nil, record)
	}
}

// handleQueryMessage finds messages by UNIQ_KEY or KEYS.
func (b *Broker) handleQueryMessage(r *request) {
	f := r.fields()
	topic, key := f.need("topic"), f.need("key")
	limit := min(max(f.num32("maxNum", 32), 1), 256)
	begin, end := f.num("beginTimestamp", 0), f.num("endTimestamp", math.MaxInt64)
	if f.err != nil {
		r.fail(f.err)
		return
	}
	info := b.store.topic(topic)
	if info == nil {
		r.answer(respQueryNotFound, "can not find message, maybe time range not correct", nil, nil)
		return
	}
	found, err := b.store.findByKey(info, key, limit)
	if err != nil {
		r.fail(err)
		return
	}
	var body []byte
	for _, m := range found {
		if m.storeTime < begin || m.storeTime > end {
			continue
		}
		record, err := m.encode()
		if err != nil {
			r.fail(err)
			return
		}
		body = append(body, record...)
	}
	if body == nil {
		r.answer(respQueryNotFound, "can not find message, maybe time range not correct", nil, nil)
		return
	}
	r.ok(map[string]string{"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": strconv.FormatInt(b.nowMS(), 10)}, body)
}
