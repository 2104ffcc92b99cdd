package broker

import (
	"encoding/binary"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/zap"
)

// Delayed messages wait in the delay bucket, sorted by due time, and are moved
// to their topic in one storage transaction: a restart neither loses nor
// repeats one. Until then their record names SCHEDULE_TOPIC_XXXX and REAL_TOPIC.

const deliverBatch = 256

// putDelayed stores m for later. It sets m's physical offset; its queue offset
// is known only at delivery, until then it is 0.
func (b *Broker) putDelayed(tx *writeTx, m *message, due int64) error {
	waiting := *m
	waiting.props = m.props.without().with(propRealTopic, m.topic).with(propRealQueueID, strconv.Itoa(m.queueID))
	waiting.topic, waiting.storeTime = topicSchedule, tx.storeTime
	record, err := waiting.encode()
	if err != nil {
		return err
	}
	m.physicalOffset = tx.takePhysical(record)
	setOffsets(record, 0, m.physicalOffset)
	key := binary.BigEndian.AppendUint64(intKey(max(due, 0)), uint64(m.physicalOffset))
	if err := tx.bucket("delay").Put(key, record); err != nil {
		return err
	}
	tx.then(b.delayWake.poke)
	return nil
}

// delayLoop delivers what is due and sleeps until the next is.
func (b *Broker) delayLoop() {
	for {
		wait, err := b.deliverDue()
		if err != nil {
			b.log.Error("delivery of delayed messages failed, trying again", zap.Error(err))
			wait = time.Second
		}
		if !b.sleepOrWake(wait, &b.delayWake) {
			return
		}
	}
}

// deliverDue moves due messages and returns the time until the next one is due.
func (b *Broker) deliverDue() (time.Duration, error) {
	for {
		next, err := b.nextDue()
		if err != nil {
			return 0, err
		}
		if next < 0 {
			return maxSleep, nil
		}
		if wait := next - b.nowMS(); wait > 0 {
			return time.Duration(min(wait, maxSleep.Milliseconds())) * time.Millisecond, nil
		}
		now := b.nowMS()
		if err := b.store.do("deliver", func(tx *writeTx) error { return b.moveDue(tx, now) }); err != nil {
			return 0, err
		}
	}
}

// nextDue is -1 when nothing waits.
func (b *Broker) nextDue() (int64, error) {
	next := int64(-1)
	err := b.store.view(func(tx *bbolt.Tx) error {
		if k, _ := tx.Bucket([]byte("delay")).Cursor().First(); len(k) == 16 {
			next = int64(binary.BigEndian.Uint64(k))
		}
		return nil
	})
	return next, err
}

func (b *Broker) moveDue(tx *writeTx, now int64) error {
	bucket := tx.bucket("delay")
	var keys, records [][]byte
	size := 0
	c := bucket.Cursor()
	for k, v := c.First(); k != nil && len(keys) < deliverBatch && size < maxGroupBytes; k, v = c.Next() {
		if int64(binary.BigEndian.Uint64(k)) > now {
			break
		}
		// Copies: memory of the transaction is not stable across its writes.
		keys, records = append(keys, append([]byte(nil), k...)), append(records, append([]byte(nil), v...))
		size += len(v)
	}
	for i, record := range records {
		if err := bucket.Delete(keys[i]); err != nil {
			return err
		}
		m, err := decodeMessage(record)
		if err != nil {
			// Not readable now nor later: it must not hold up the others.
			b.log.Error("delayed message dropped", zap.Binary("key", keys[i]), zap.Error(err))
			continue
		}
		m.topic = m.props.value(propRealTopic)
		m.queueID, _ = strconv.Atoi(m.props.value(propRealQueueID)) // we wrote it
		m.props = m.props.without(propRealTopic, propRealQueueID, propDelayLevel, propTimerDeliverMS, propTimerDelayMS, propTimerDelaySec)
		if err := tx.append(m, b.newTopicQueues(m.topic)); err != nil {
			return fatal(err)
		}
	}
	return nil
}
