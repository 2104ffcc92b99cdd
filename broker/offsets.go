package broker

import (
	"encoding/binary"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/zap"
)

// offsetFlush bounds how long an acknowledged consumer offset is in memory
// only. Losing it repeats messages, which consumers must bear anyway.
const offsetFlush = 500 * time.Millisecond

// offsets are the consumer groups' committed offsets.
type offsets struct {
	mu        sync.Mutex
	committed map[string]int64 // by offsetKey
	dirty     map[string]int64
}

func newOffsets() *offsets {
	return &offsets{committed: make(map[string]int64), dirty: make(map[string]int64)}
}

func offsetKey(group, topic string, queue int) string {
	key := append([]byte(group), 0)
	key = append(append(key, topic...), 0)
	return string(binary.BigEndian.AppendUint32(key, uint32(queue)))
}

// set takes any value, also a smaller one: that is how clients reset.
func (o *offsets) set(group, topic string, queue int, offset int64) {
	// The separator cannot be part of a name; one that has it is nobody's.
	if group == "" || topic == "" || queue < 0 || offset < 0 || strings.ContainsRune(group+topic, 0) || len(group)+len(topic) > 1<<10 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	key := offsetKey(group, topic, queue)
	if old, ok := o.committed[key]; !ok || old != offset {
		o.committed[key], o.dirty[key] = offset, offset
	}
}

func (o *offsets) get(group, topic string, queue int) (int64, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	offset, ok := o.committed[offsetKey(group, topic, queue)]
	return offset, ok
}

func (b *Broker) loadOffsets() error {
	return b.store.view(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("offsets")).ForEach(func(k, v []byte) error {
			if len(v) == 8 {
				b.offsets.committed[string(k)] = int64(binary.BigEndian.Uint64(v))
			}
			return nil
		})
	})
}

// flushOffsets writes what changed since the last call.
func (b *Broker) flushOffsets() error {
	o := b.offsets
	o.mu.Lock()
	dirty := o.dirty
	o.dirty = make(map[string]int64)
	o.mu.Unlock()
	if len(dirty) == 0 {
		return nil
	}
	err := b.store.do("offsets", func(tx *writeTx) error {
		bucket := tx.bucket("offsets")
		for key, offset := range dirty {
			if err := bucket.Put([]byte(key), intKey(offset)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		o.mu.Lock()
		for key, offset := range dirty {
			if _, newer := o.dirty[key]; !newer {
				o.dirty[key] = offset
			}
		}
		o.mu.Unlock()
	}
	return err
}

func (b *Broker) offsetLoop() {
	for b.sleep(offsetFlush) {
		if err := b.flushOffsets(); err != nil {
			b.log.Error("consumer offsets were not written, trying again", zap.Error(err))
		}
	}
}

// handleQueryOffset answers 22 for a group that never committed, so that the
// client's ConsumeFromWhere decides.
func (b *Broker) handleQueryOffset(r *request) {
	f := r.fields()
	group, topic, queue := f.need("consumerGroup"), f.need("topic"), f.num32("queueId", -1)
	if f.err != nil {
		r.fail(f.err)
		return
	}
	offset, ok := b.offsets.get(group, topic, queue)
	if !ok {
		r.answer(respQueryNotFound, "the group has no offset of this queue", nil, nil)
		return
	}
	r.ok(map[string]string{"offset": strconv.FormatInt(offset, 10)}, nil)
}

func (b *Broker) handleUpdateOffset(r *request) {
	f := r.fields()
	group, topic, queue := f.need("consumerGroup"), f.need("topic"), f.num32("queueId", -1)
	offset := f.num("commitOffset", -1)
	if f.err != nil {
		r.fail(f.err)
		return
	}
	b.offsets.set(group, topic, queue, offset)
	r.ok(nil, nil)
}
