package broker

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/zap"
)

// Half messages. The half bucket holds the open ones only: ending a half
// deletes it in the transaction that makes the message visible. One that is
// given up moves to the bucket discarded, where a late verdict finds it. A check
// re-appends the half under new offsets as RocketMQ does; alias leads from its
// former offsets to the current ones, so that a late END_TRANSACTION still ends
// it, once.

// halves is the memory index of the open halves: who is to be checked when.
type halves struct {
	mu      sync.Mutex
	open    map[int64]*openHalf // by current physical offset
	due     dueHeap             // may hold entries of halves that moved or ended
	metrics *metrics
}

type openHalf struct {
	physical int64
	due      int64 // Unix milliseconds of the next check
}

func newHalves(m *metrics) *halves {
	return &halves{open: make(map[int64]*openHalf), metrics: m}
}

// dueHeap orders halves of one due time as they are stored: RocketMQ reads them
// from a queue, so that is the order of its checks and of what it gives up.
type dueHeap []openHalf

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].due, h[j].due), cmp.Compare(h[i].physical, h[j].physical)) < 0
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)   { *h = append(*h, x.(openHalf)) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// add tells whether the half is the next to be checked.
func (h *halves) add(physical, due int64) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first = len(h.due) == 0 || due < h.due[0].due
	h.open[physical] = &openHalf{physical, due}
	heap.Push(&h.due, openHalf{physical, due})
	h.metrics.openHalves.Set(float64(len(h.open)))
	return first
}

// move gives a half that is checked its new offset. It counts as open all the while.
func (h *halves) move(from, to, due int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, from)
	h.open[to] = &openHalf{to, due}
	heap.Push(&h.due, openHalf{to, due})
}

func (h *halves) remove(physical int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, physical)
	h.metrics.openHalves.Set(float64(len(h.open)))
	// Most halves end long before they are due.
	if len(h.due) > 2*len(h.open)+4096 {
		h.due = slices.DeleteFunc(h.due, func(e openHalf) bool {
			cur := h.open[e.physical]
			return cur == nil || cur.due != e.due
		})
		heap.Init(&h.due)
	}
}

func (h *halves) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.open)
}

// take returns up to limit halves due by now. They leave the schedule; the
// check re-adds them under their new offsets, postpone after a failure.
func (h *halves) take(now int64, limit int) []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []int64
	for len(h.due) > 0 && h.due[0].due <= now && len(out) < limit {
		next := heap.Pop(&h.due).(openHalf)
		if cur := h.open[next.physical]; cur != nil && cur.due == next.due {
			out = append(out, next.physical)
		}
	}
	return out
}

// postpone schedules halves that are still open again.
func (h *halves) postpone(physicals []int64, due int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range physicals {
		if cur := h.open[p]; cur != nil {
			cur.due = due
			heap.Push(&h.due, *cur)
		}
	}
}

// nextDue returns false when nothing is scheduled.
func (h *halves) nextDue() (int64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.due) == 0 {
		return 0, false
	}
	return h.due[0].due, true
}

// halfRecord is a value of the half bucket.
type halfRecord struct {
	former []halfOffset // where it was before its checks
	m      *message
}

type halfOffset struct{ physical, queue int64 }

func (hr *halfRecord) encode() ([]byte, error) {
	record, err := hr.m.encode()
	if err != nil {
		return nil, err
	}
	b := binary.BigEndian.AppendUint16(nil, uint16(len(hr.former)))
	for _, f := range hr.former {
		b = binary.BigEndian.AppendUint64(b, uint64(f.physical))
		b = binary.BigEndian.AppendUint64(b, uint64(f.queue))
	}
	return append(b, record...), nil
}

func decodeHalf(b []byte) (*halfRecord, error) {
	r := &reader{b: b}
	hr := &halfRecord{}
	for range r.u16() {
		hr.former = append(hr.former, halfOffset{int64(r.u64()), int64(r.u64())})
	}
	if r.bad {
		return nil, fmt.Errorf("%w: half", errBadMessage)
	}
	var err error
	hr.m, err = decodeMessage(r.b)
	return hr, err
}

// loadHalves rebuilds the index from the open halves at Open.
func (b *Broker) loadHalves() error {
	return b.store.view(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("half")).ForEach(func(k, v []byte) error {
			physical := int64(binary.BigEndian.Uint64(k))
			hr, err := decodeHalf(v)
			if err != nil {
				b.log.Error("half message cannot be read, it is not checked", zap.Int64("physical_offset", physical), zap.Error(err))
				return nil
			}
			due := b.firstCheck(hr.m)
			if checkTimes(hr.m) > 0 { // then it was re-appended by its last check
				due = hr.m.storeTime + b.cfg.CheckInterval.Milliseconds()
			}
			b.halves.add(physical, due)
			return nil
		})
	})
}

func checkTimes(m *message) int {
	n, err := strconv.Atoi(m.props.value(propCheckTimes))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// firstCheck is the time of the first check: born plus the transaction timeout
// or the message's own CHECK_IMMUNITY_TIME_IN_SECONDS. A producer whose clock is
// ahead gets it counted from the store time instead.
func (b *Broker) firstCheck(m *message) int64 {
	timeout := b.cfg.TransactionTimeout.Milliseconds()
	if s, err := strconv.ParseInt(m.props.value(propCheckImmunity), 10, 64); err == nil && s >= 0 {
		timeout = min(s, math.MaxInt32) * time.Second.Milliseconds()
	}
	return min(m.bornTime, m.storeTime) + timeout
}

// storeHalf stores m, which names the topic the producer sent it to, as a half.
func (b *Broker) storeHalf(r *request, m *message) {
	m.props = m.props.
		// RocketMQ would put the half itself on the delay schedule and lose its
		// real topic (#1540); here a half is never delayed.
		without(propDelayLevel, propTimerDeliverMS, propTimerDelayMS, propTimerDelaySec, propCheckTimes).
		with(propRealTopic, m.topic).with(propRealQueueID, strconv.Itoa(m.queueID))
	m.topic, m.queueID = topicHalf, 0
	if _, ok := m.props.get(propProducerGroup); !ok {
		h, _ := decodeSendHeader(r.cmd) // decoded once already
		m.props = m.props.with(propProducerGroup, h.producerGroup)
	}
	b.store.submit(&write{
		op: "half", size: len(m.body),
		apply: func(tx *writeTx) error { return b.addHalf(tx, m) },
		done:  func(err error) { b.answerSend(r, err, m) },
	})
}

// addHalf stores a new half.
func (b *Broker) addHalf(tx *writeTx, m *message) error {
	if err := putHalf(tx, &halfRecord{m: m}); err != nil {
		return err
	}
	physical, due := m.physicalOffset, b.firstCheck(m)
	tx.then(func() {
		if b.halves.add(physical, due) {
			b.checkWake.poke()
		}
	})
	return nil
}

// putHalf gives the half new offsets and stores it. The index is the caller's to change.
func putHalf(tx *writeTx, hr *halfRecord) error {
	hr.m.storeTime, hr.m.queueOffset, hr.m.physicalOffset = tx.storeTime, tx.nextHalf, tx.nextPhysical
	value, err := hr.encode()
	if err != nil {
		return err
	}
	tx.nextHalf++
	tx.takePhysical(value)
	return tx.bucket("half").Put(intKey(hr.m.physicalOffset), value)
}

// findHalf resolves offsets, current or former, to the half, open or given up.
func findHalf(tx *writeTx, physical, queueOffset int64) (*halfRecord, error) {
	gone := reject(respSystemError, "find prepared transaction message failed: no open half at these offsets")
	if alias := tx.bucket("alias").Get(intKey(physical)); len(alias) == 16 {
		if int64(binary.BigEndian.Uint64(alias[8:])) != queueOffset {
			return nil, gone
		}
		physical, queueOffset = int64(binary.BigEndian.Uint64(alias)), -1
	}
	value := tx.bucket("half").Get(intKey(physical))
	if value == nil {
		value = tx.bucket("discarded").Get(intKey(physical))
	}
	if value == nil {
		return nil, gone
	}
	hr, err := decodeHalf(value)
	if err != nil {
		return nil, reject(respSystemError, err.Error())
	}
	if queueOffset >= 0 && hr.m.queueOffset != queueOffset {
		return nil, gone
	}
	return hr, nil
}

// deleteHalf removes a half with its aliases. The index forgets it once that is
// durable.
func (b *Broker) deleteHalf(tx *writeTx, hr *halfRecord) error {
	physical := hr.m.physicalOffset
	tx.then(func() { b.halves.remove(physical) })
	return takeHalf(tx, hr)
}

// takeHalf removes a half with its aliases from the storage.
func takeHalf(tx *writeTx, hr *halfRecord) error {
	physical := hr.m.physicalOffset
	if err := deleteAliases(tx, hr); err != nil {
		return err
	}
	if err := tx.bucket("discarded").Delete(intKey(physical)); err != nil {
		return err
	}
	return tx.bucket("half").Delete(intKey(physical))
}

func deleteAliases(tx *writeTx, hr *halfRecord) error {
	for _, f := range hr.former {
		if err := tx.bucket("alias").Delete(intKey(f.physical)); err != nil {
			return err
		}
	}
	return nil
}
