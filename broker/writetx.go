package broker

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
)

// appendFill is the fill of buckets whose keys only grow: a half empty page
// would stay half empty.
const appendFill = 0.95

// writeTx is the open storage transaction of one group of writes together with
// the memory state as it will be once that is committed. A failed commit throws
// it away. Of the committer goroutine only.
type writeTx struct {
	s  *store
	tx *bbolt.Tx

	nextPhysical, nextHalf int64
	nextTopicID            uint32
	storeTime              int64
	topics                 map[string]*topicInfo
	queues                 map[queueKey]queueRange
	touched                []queueKey
	stored, storedBytes    int
	after                  []func()
}

func (s *store) newWriteTx() *writeTx {
	s.lastStoreTime = max(s.lastStoreTime, s.hooks.Now().UnixMilli())
	return &writeTx{
		s: s, nextPhysical: s.nextPhysical, nextHalf: s.nextHalf, nextTopicID: s.nextTopicID,
		storeTime: s.lastStoreTime, // never goes back: SEARCH_OFFSET is a binary search over it
		topics:    make(map[string]*topicInfo), queues: make(map[queueKey]queueRange),
	}
}

func (t *writeTx) open(tx *bbolt.Tx) { t.tx = tx }

func (t *writeTx) bucket(name string) *bbolt.Bucket {
	b := t.tx.Bucket([]byte(name))
	switch name {
	case "log", "index", "half", "delay":
		b.FillPercent = appendFill
	}
	return b
}

// finish writes the counters. publish makes the new memory state visible.
func (t *writeTx) finish() error {
	meta := t.bucket("meta")
	if t.nextHalf != t.s.nextHalf {
		if err := putInt(meta, metaNextHalf, t.nextHalf); err != nil {
			return err
		}
	}
	if t.nextPhysical != t.s.nextPhysical {
		return putInt(meta, metaNextPhysical, t.nextPhysical)
	}
	return nil
}

func (t *writeTx) publish() {
	s := t.s
	s.nextPhysical, s.nextHalf, s.nextTopicID = t.nextPhysical, t.nextHalf, t.nextTopicID
	s.mu.Lock()
	for name, info := range t.topics {
		s.topics[name] = info
	}
	for key, r := range t.queues {
		s.queues[key] = r
	}
	s.mu.Unlock()
	for _, f := range t.after {
		f()
	}
	s.metrics.stored.Add(float64(t.stored))
	s.metrics.storedBytes.Add(float64(t.storedBytes))
	if len(t.touched) > 0 {
		s.appended(t.touched)
	}
}

// then runs f once the transaction is durable.
func (t *writeTx) then(f func()) { t.after = append(t.after, f) }

func (t *writeTx) topic(name string) *topicInfo {
	if info, ok := t.topics[name]; ok {
		return info
	}
	return t.s.topics[name]
}

// putTopic creates the topic or replaces its configuration; its id stays.
func (t *writeTx) putTopic(name string, read, write, perm int) (*topicInfo, error) {
	info := &topicInfo{Name: name, Read: read, Write: write, Perm: perm}
	if old := t.topic(name); old != nil {
		info.ID = old.ID
	} else {
		info.ID = t.nextTopicID
		t.nextTopicID++
	}
	v, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	if err := t.bucket("topics").Put([]byte(name), v); err != nil {
		return nil, err
	}
	// A topic that was larger once has messages in queues not loaded at Open.
	for q := range info.queues() {
		if key := info.key(q); t.queueRange(key) == (queueRange{}) {
			t.queues[key] = loadRange(t.tx, key)
		}
	}
	t.topics[name] = info
	return info, nil
}

// ensureTopic returns the topic, created with so many queues if it is new.
func (t *writeTx) ensureTopic(name string, queues int) (*topicInfo, error) {
	if info := t.topic(name); info != nil {
		return info, nil
	}
	return t.putTopic(name, queues, queues, permRead|permWrite)
}

func (t *writeTx) queueRange(key queueKey) queueRange {
	if r, ok := t.queues[key]; ok {
		return r
	}
	return t.s.queues[key]
}

// takePhysical reserves the physical offsets of a record.
func (t *writeTx) takePhysical(record []byte) int64 {
	physical := t.nextPhysical
	t.nextPhysical += int64(len(record))
	return physical
}

// append stores m at the end of its queue and makes it visible. It sets m's
// offsets and store time. Queues past the topic's last one are wrapped, which
// matters only for messages that waited while the topic was made smaller.
func (t *writeTx) append(m *message, queues int) error {
	info, err := t.ensureTopic(m.topic, queues)
	if err != nil {
		return err
	}
	if n := info.queues(); m.queueID < 0 || m.queueID >= n {
		m.queueID = ((m.queueID % n) + n) % n
	}
	m.storeTime = t.storeTime
	record, err := m.encode()
	if err != nil {
		return err
	}
	key := info.key(m.queueID)
	r := t.queueRange(key)
	m.queueOffset, m.physicalOffset = r.max, t.takePhysical(record)
	setOffsets(record, m.queueOffset, m.physicalOffset)
	if err := t.bucket("log").Put(intKey(m.physicalOffset), record); err != nil {
		return err
	}
	if err := t.bucket("index").Put(key.at(m.queueOffset), indexEntry(m)); err != nil {
		return err
	}
	r.max++
	t.queues[key] = r
	if !slices.Contains(t.touched, key) {
		t.touched = append(t.touched, key)
	}
	t.stored++
	t.storedBytes += len(record)
	return nil
}

// indexEntry is physical offset, tag hash (0: no tag), then a hash for UNIQ_KEY
// and one for each of KEYS: look-up by key scans the small index instead of
// paying for a random write with every message.
func indexEntry(m *message) []byte {
	b := intKey(m.physicalOffset)
	b = binary.BigEndian.AppendUint64(b, tagHash(m.props.value(propTags)))
	b = binary.BigEndian.AppendUint64(b, keyHash(m.props.value(propUniqKey)))
	for key := range strings.FieldsSeq(m.props.value(propKeys)) {
		b = binary.BigEndian.AppendUint64(b, keyHash(key))
	}
	return b
}

func keyHash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum64()
}

func tagHash(tag string) uint64 {
	if tag == "" {
		return 0
	}
	return max(1, keyHash(tag))
}
