package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// readResult is what one look into a queue found.
type readResult struct {
	body    []byte // stored messages back to back
	count   int
	scanned int
	next    int64 // offset to go on at
}

// maxScan bounds the index entries one filtered look passes over.
const maxScan = 16000

// read collects messages of a queue from an offset on, at most maxCount and
// about maxBytes (one message is always taken whatever its size). match decides
// by tag hash; nil takes everything.
func (s *store) read(key queueKey, from int64, maxCount, maxBytes int, match func(tag uint64) bool) (readResult, error) {
	res := readResult{next: from}
	err := s.scan(key, from, func(tx *bbolt.Tx, offset int64, entry []byte) (bool, error) {
		if match != nil && !match(binary.BigEndian.Uint64(entry[8:])) {
			res.next, res.scanned = offset+1, res.scanned+1
			return res.scanned < maxScan, nil
		}
		record := tx.Bucket([]byte("log")).Get(entry[:8])
		if res.count > 0 && len(res.body)+len(record) > maxBytes {
			return false, nil
		}
		// A record that is gone was deleted by retention between the two looks
		// of a client; skipping it is what the client would have to do anyway.
		if record != nil {
			res.body = append(res.body, record...)
			res.count++
		}
		res.next, res.scanned = offset+1, res.scanned+1
		return res.count < maxCount && res.scanned < maxScan, nil
	})
	return res, err
}

// scan visits index entries in order until visit returns false or the published end of the queue is reached. What a
// commit under way has written is visible in the file before its fsync and before the queue's new end is known: a
// consumer that was handed such a message would hold an offset past the end, or a message that a power cut takes back.
func (s *store) scan(key queueKey, from int64, visit func(tx *bbolt.Tx, offset int64, entry []byte) (bool, error)) error {
	end := s.queueRange(key).max
	return s.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket([]byte("index")).Cursor()
		for k, v := c.Seek(key.at(max(from, 0))); key.has(k) && offsetOf(k) < end; k, v = c.Next() {
			if len(v) < 24 {
				return fmt.Errorf("index entry of %d bytes", len(v))
			}
			more, err := visit(tx, offsetOf(k), v)
			if err != nil || !more {
				return err
			}
		}
		return nil
	})
}

// view is a read transaction. Keep it short: growing the file waits for it.
func (s *store) view(f func(*bbolt.Tx) error) error {
	err := s.db.View(f)
	if errors.Is(err, berrors.ErrDatabaseNotOpen) {
		return ErrStopped
	}
	return err
}

// message returns the stored bytes at a physical offset, nil when there are none.
func (s *store) message(physical int64) ([]byte, error) {
	var record []byte
	err := s.view(func(tx *bbolt.Tx) error {
		record = append(record, tx.Bucket([]byte("log")).Get(intKey(physical))...)
		return nil
	})
	return record, err
}

// searchOffset returns the first offset whose store time is not before ms
// (Unix milliseconds); the end of the queue when there is none.
func (s *store) searchOffset(key queueKey, ms int64) (int64, error) {
	r := s.queueRange(key)
	found := r.max
	err := s.view(func(tx *bbolt.Tx) error {
		index, log := tx.Bucket([]byte("index")), tx.Bucket([]byte("log"))
		var failed error
		n := sort.Search(int(r.max-r.min), func(i int) bool {
			entry := index.Get(key.at(r.min + int64(i)))
			if entry == nil {
				return false // expired meanwhile: older than anything present
			}
			m, _, err := decodeMessageShared(log.Get(entry[:8]))
			if err != nil {
				failed = err
				return true
			}
			return m.storeTime >= ms
		})
		found = r.min + int64(n)
		return failed
	})
	return found, err
}

// findByKey returns stored messages of a topic whose UNIQ_KEY or one of whose
// KEYS is key, newest last, at most limit.
func (s *store) findByKey(info *topicInfo, key string, limit int) ([]*message, error) {
	want := keyHash(key)
	var found []*message
	for q := range info.queues() {
		err := s.scan(info.key(q), 0, func(tx *bbolt.Tx, _ int64, entry []byte) (bool, error) {
			for hashes := entry[16:]; len(hashes) >= 8; hashes = hashes[8:] {
				if binary.BigEndian.Uint64(hashes) != want {
					continue
				}
				m, err := decodeMessage(tx.Bucket([]byte("log")).Get(entry[:8]))
				if err != nil {
					return false, err
				}
				if m.hasKey(key) {
					found = append(found, m)
				}
				break
			}
			return len(found) < limit, nil
		})
		if err != nil {
			return nil, err
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].physicalOffset < found[j].physicalOffset })
	return found, nil
}
