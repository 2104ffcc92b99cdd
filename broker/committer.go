package broker

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/zap"
)

// write is one change of the storage. Many share one storage transaction and
// with it one fsync.
type write struct {
	op   string // for StorageFault and logs
	size int    // about how many bytes it writes
	// apply does the change. A *rejection concerns this write alone and must be
	// returned before anything was changed; any other error fails the whole group.
	apply func(*writeTx) error
	// done gets the outcome when it is durable. It must neither block nor submit
	// another write.
	done func(error)

	err error
}

const (
	maxGroupWrites = 1024
	maxGroupBytes  = 16 << 20
)

// submit queues w and returns; w.done is called exactly once. It blocks while
// the queue of writes is full, which is what slows clients down.
func (s *store) submit(w *write) {
	s.submitMu.RLock()
	defer s.submitMu.RUnlock()
	if s.closed {
		w.done(ErrStopped)
		return
	}
	s.writes <- w
}

// do submits a write and waits for it.
func (s *store) do(op string, apply func(*writeTx) error) error {
	done := make(chan error, 1)
	s.submit(&write{op: op, apply: apply, done: func(err error) { done <- err }})
	return <-done
}

// start runs the committer and the completer until close.
func (s *store) start() {
	s.wg.Add(2)
	go func() {
		defer s.wg.Done()
		defer close(s.committed)
		for first := range s.writes {
			group := s.gather(first)
			s.commit(group)
			s.committed <- group
		}
	}()
	// Answers are encoded and sent here so that the next fsync need not wait.
	go func() {
		defer s.wg.Done()
		for group := range s.committed {
			for _, w := range group {
				s.finish(w)
			}
		}
	}()
}

// finish keeps a panic in one answer from ending the process.
func (s *store) finish(w *write) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic after a storage write", zap.String("op", w.op), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		}
	}()
	w.done(w.err)
}

// gather takes what is queued now and does not wait for more: an idle broker
// adds no latency, a busy one fills the next group during the fsync of this one.
func (s *store) gather(first *write) []*write {
	group, size := []*write{first}, first.size
	for len(group) < maxGroupWrites && size < maxGroupBytes {
		select {
		case w, ok := <-s.writes:
			if !ok {
				return group
			}
			group, size = append(group, w), size+w.size
		default:
			return group
		}
	}
	return group
}

func (s *store) commit(group []*write) {
	start := time.Now()
	wtx := s.newWriteTx()
	err := s.apply(wtx, group)
	if err != nil {
		s.log.Error("storage write failed", zap.Error(err), zap.Int("writes", len(group)))
		for _, w := range group {
			if w.err == nil {
				w.err = err
				s.metrics.writeErrors.Inc()
			}
		}
		return
	}
	wtx.publish()
	s.metrics.commitTime.Observe(time.Since(start).Seconds())
	s.metrics.commitSize.Observe(float64(len(group)))
}

// apply runs the group in one storage transaction. A panic rolls it back.
func (s *store) apply(wtx *writeTx, group []*write) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a storage write: %v\n%s", p, debug.Stack())
		}
	}()
	return s.db.Update(func(tx *bbolt.Tx) error {
		wtx.open(tx)
		for _, w := range group {
			if w.err = s.fault(w.op); w.err != nil {
				continue
			}
			err := w.apply(wtx)
			var rejected *rejection
			switch {
			case errors.As(err, &rejected):
				w.err = err
			case err != nil:
				return fmt.Errorf("%s: %w", w.op, err)
			}
		}
		return wtx.finish()
	})
}

func (s *store) fault(op string) error {
	if s.hooks.StorageFault == nil {
		return nil
	}
	err := s.hooks.StorageFault(op)
	if err != nil {
		s.metrics.writeErrors.Inc()
		s.log.Error("storage write failed", zap.String("op", op), zap.Error(err))
	}
	return err
}

// close finishes the writes that are queued and closes the file. Idempotence is
// the caller's (Broker.Stop runs once).
func (s *store) close() error {
	s.submitMu.Lock()
	s.closed = true
	close(s.writes)
	s.submitMu.Unlock()
	s.wg.Wait()
	return s.db.Close()
}
