package broker

import (
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/zap"
)

// expireBatch is the number of messages deleted in one storage transaction:
// small, so that senders hardly wait for it.
const expireBatch = 256

// retentionLoop deletes old messages.
func (b *Broker) retentionLoop() {
	if b.cfg.Retention < 0 {
		return
	}
	every := min(max(b.cfg.Retention/10, 50*time.Millisecond), time.Minute)
	for b.sleep(every) {
		for !b.stopping.Load() {
			n, err := b.expire()
			if err != nil {
				b.log.Error("retention failed, trying again", zap.Error(err))
			}
			if err != nil || n < expireBatch {
				break
			}
		}
	}
}

// expire deletes up to expireBatch messages older than Retention and returns
// how many. The log is in store order, so the old ones are its first.
func (b *Broker) expire() (int, error) {
	cutoff := b.cfg.Hooks.Now().Add(-b.cfg.Retention).UnixMilli()
	if old, err := b.anyOlder(cutoff); err != nil || !old {
		return 0, err
	}
	n, gone := 0, 0
	err := b.store.do("retention", func(tx *writeTx) (err error) {
		if n, err = tx.expire(cutoff, expireBatch); err != nil {
			return err
		}
		gone, err = tx.expireDiscarded(cutoff, expireBatch)
		return err
	})
	b.metrics.expired.Add(float64(n))
	return max(n, gone), err
}

// anyOlder spares an fsync when there is nothing to do.
func (b *Broker) anyOlder(cutoff int64) (old bool, err error) {
	err = b.store.view(func(tx *bbolt.Tx) error {
		if k, v := tx.Bucket([]byte("log")).Cursor().First(); k != nil {
			m, _, err := decodeMessageShared(v)
			old = err != nil || m.storeTime < cutoff
		}
		if k, v := tx.Bucket([]byte("discarded")).Cursor().First(); k != nil {
			hr, err := decodeHalf(v)
			old = old || err != nil || hr.m.storeTime < cutoff
		}
		return nil
	})
	return old, err
}

// expireDiscarded deletes halves that were given up and are older than cutoff:
// no verdict of theirs is carried out any more.
func (t *writeTx) expireDiscarded(cutoff int64, limit int) (int, error) {
	n := 0
	discarded := t.bucket("discarded")
	var keys [][]byte
	c := discarded.Cursor()
	for k, v := c.First(); k != nil && n < limit; k, v = c.Next() {
		hr, err := decodeHalf(v)
		if err == nil && hr.m.storeTime >= cutoff {
			break
		}
		if err == nil {
			if err := deleteAliases(t, hr); err != nil {
				return 0, err
			}
		}
		keys = append(keys, append([]byte(nil), k...))
		n++
	}
	for _, k := range keys {
		if err := discarded.Delete(k); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (t *writeTx) expire(cutoff int64, limit int) (int, error) {
	log := t.bucket("log")
	var keys [][]byte
	var old []*message
	c := log.Cursor()
	for k, v := c.First(); k != nil && len(keys) < limit; k, v = c.Next() {
		m, _, err := decodeMessageShared(v)
		if err == nil && m.storeTime >= cutoff {
			break
		}
		keys = append(keys, append([]byte(nil), k...))
		old = append(old, m) // nil when it cannot be read: it is deleted all the same
	}
	for i, k := range keys {
		if err := log.Delete(k); err != nil {
			return 0, err
		}
		if old[i] == nil {
			continue
		}
		if err := t.expireIndex(old[i]); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}

// expireIndex moves the queue's minimum past m. The queue's end is kept apart:
// it must not go back when its last message is deleted.
func (t *writeTx) expireIndex(m *message) error {
	info := t.topic(m.topic)
	if info == nil {
		return nil
	}
	key := info.key(m.queueID)
	r := t.queueRange(key)
	if err := t.bucket("index").Delete(key.at(m.queueOffset)); err != nil {
		return err
	}
	r.min = max(r.min, m.queueOffset+1)
	t.queues[key] = r
	if r.min < r.max {
		return nil
	}
	return t.bucket("next").Put(key.bytes(), intKey(r.max))
}
