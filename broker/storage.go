package broker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.uber.org/zap"
)

// Buckets of the storage file. All integers in keys and values are big endian,
// so keys sort by number and are appended in order.
//
//	meta     name -> int64: next physical offset, next half queue offset, format
//	topics   name -> topicInfo as JSON
//	log      physical offset -> stored message
//	index    topic id, queue, queue offset -> physical offset, tag hash, key hashes
//	next     topic id, queue -> next queue offset; only for queues that retention emptied
//	half     physical offset -> former offsets and stored message, open halves only
//	alias    former physical offset of a half -> current offset, former queue offset
//	discarded  physical offset -> former offsets and stored message, halves given up
//	delay    due time in ms, physical offset -> stored message
//	offsets  group \0 topic \0 queue -> consumer offset
func bucketNames() []string {
	return []string{"meta", "topics", "log", "index", "next", "half", "alias", "discarded", "delay", "offsets"}
}

const (
	storageFile   = "broker.db"
	storageFormat = 1

	metaFormat       = "format"
	metaNextPhysical = "next_physical"
	metaNextHalf     = "next_half"
)

// queueKey names one queue by number; see topicInfo.ID.
type queueKey struct {
	topic uint32
	queue uint32
}

// queueRange are the offsets of the messages present: [min, max).
type queueRange struct{ min, max int64 }

// topicInfo is a topic's configuration as stored.
type topicInfo struct {
	Name  string `json:"-"`
	ID    uint32 `json:"id"`
	Read  int    `json:"read"`
	Write int    `json:"write"`
	Perm  int    `json:"perm"`
}

func (t *topicInfo) queues() int { return max(t.Read, t.Write) }

func (t *topicInfo) key(queue int) queueKey { return queueKey{t.ID, uint32(queue)} }

// store is the durable state. Reads may come from any goroutine; all writes go
// through the one committer goroutine (see write, run), which alone changes the
// fields below mu after load.
type store struct {
	db      *bbolt.DB
	log     *zap.Logger
	metrics *metrics
	hooks   Hooks

	mu     sync.RWMutex
	topics map[string]*topicInfo
	queues map[queueKey]queueRange

	// Of the committer only.
	nextPhysical, nextHalf int64
	nextTopicID            uint32
	lastStoreTime          int64

	// appended is told the queues that got messages, after each commit.
	appended func([]queueKey)

	submitMu  sync.RWMutex
	closed    bool
	writes    chan *write
	committed chan []*write
	wg        sync.WaitGroup
}

func openStore(cfg Config, m *metrics) (*store, error) {
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("broker: storage folder %s: %w", cfg.Dir, err)
	}
	path := filepath.Join(cfg.Dir, storageFile)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
		// Growing the mapping stops readers; start with room.
		InitialMmapSize: 64 << 20,
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("broker: %w: %s", ErrStorageInUse, path)
	case err != nil:
		return nil, fmt.Errorf("broker: open storage %s: %w", path, err)
	}
	if err := syncFolders(cfg.Dir); err != nil {
		return nil, errors.Join(fmt.Errorf("broker: storage folder %s: %w", cfg.Dir, err), db.Close())
	}
	s := &store{
		db: db, log: cfg.Logger, metrics: m, hooks: cfg.Hooks,
		topics: make(map[string]*topicInfo), queues: make(map[queueKey]queueRange),
		nextTopicID: 1, appended: func([]queueKey) {},
		writes: make(chan *write, 1024), committed: make(chan []*write, 16),
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("broker: load storage %s: %w", path, err), db.Close())
	}
	return s, nil
}

// syncFolders makes the names of a new folder and file durable, which syncing
// the file itself does not.
func syncFolders(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be synced there
	}
	for _, name := range []string{dir, filepath.Dir(filepath.Clean(dir))} {
		folder, err := os.Open(name)
		if err != nil {
			return err
		}
		if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
			return err
		}
	}
	return nil
}

// load creates what is missing and rebuilds the memory state from topics and
// the ends of the queues; it does not read messages.
func (s *store) load() error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range bucketNames() {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		meta := tx.Bucket([]byte("meta"))
		switch format := getInt(meta, metaFormat); format {
		case 0:
			if err := putInt(meta, metaFormat, storageFormat); err != nil {
				return err
			}
		case storageFormat:
		default:
			return fmt.Errorf("format %d is not known, only %d", format, storageFormat)
		}
		s.nextPhysical = getInt(meta, metaNextPhysical)
		s.nextHalf = getInt(meta, metaNextHalf)
		return tx.Bucket([]byte("topics")).ForEach(func(k, v []byte) error {
			info := &topicInfo{Name: string(k)}
			if err := json.Unmarshal(v, info); err != nil {
				return fmt.Errorf("topic %q: %w", k, err)
			}
			s.topics[info.Name] = info
			s.nextTopicID = max(s.nextTopicID, info.ID+1)
			for q := range info.queues() {
				s.queues[info.key(q)] = loadRange(tx, info.key(q))
			}
			return nil
		})
	})
}

func loadRange(tx *bbolt.Tx, key queueKey) queueRange {
	next := int64(0)
	if v := tx.Bucket([]byte("next")).Get(key.bytes()); len(v) == 8 {
		next = int64(binary.BigEndian.Uint64(v))
	}
	c := tx.Bucket([]byte("index")).Cursor()
	first, _ := c.Seek(key.at(0))
	if !key.has(first) {
		return queueRange{next, next}
	}
	// The last entry of the queue is the one before where its end would be.
	last, _ := c.Seek(key.at(math.MaxInt64))
	if last == nil {
		last, _ = c.Last()
	} else if !key.has(last) {
		last, _ = c.Prev()
	}
	return queueRange{min: offsetOf(first), max: max(next, offsetOf(last)+1)}
}

func (k queueKey) bytes() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 16), k.topic)
	return binary.BigEndian.AppendUint32(b, k.queue)
}

// at is the index key of one offset.
func (k queueKey) at(offset int64) []byte {
	return binary.BigEndian.AppendUint64(k.bytes(), uint64(offset))
}

// has tells whether an index key belongs to this queue.
func (k queueKey) has(indexKey []byte) bool {
	return len(indexKey) == 16 && binary.BigEndian.Uint32(indexKey) == k.topic &&
		binary.BigEndian.Uint32(indexKey[4:]) == k.queue
}

func offsetOf(indexKey []byte) int64 { return int64(binary.BigEndian.Uint64(indexKey[8:])) }

func intKey(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func getInt(b *bbolt.Bucket, key string) int64 {
	if v := b.Get([]byte(key)); len(v) == 8 {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func putInt(b *bbolt.Bucket, key string, n int64) error { return b.Put([]byte(key), intKey(n)) }

// topic returns nil when the topic does not exist.
func (s *store) topic(name string) *topicInfo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.topics[name]
}

// queueRange is zero for a queue that does not exist.
func (s *store) queueRange(key queueKey) queueRange {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.queues[key]
}

// allTopics returns a snapshot in no order.
func (s *store) allTopics() []*topicInfo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*topicInfo, 0, len(s.topics))
	for _, t := range s.topics {
		all = append(all, t)
	}
	return all
}
