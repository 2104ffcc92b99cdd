package txmsg

import (
	"sync"
	"sync/atomic"
)

// maxIdleSenders is how many senders are kept for the next half messages.
const maxIdleSenders = 64

// senders are the goroutines in which the client sends half messages and runs local transactions. They are kept: the
// client, the driver and gorm need a deep stack, and growing a new one for every order is a twentieth of its CPU time.
type senders struct {
	tasks   chan func() // from do to an idle one; it holds nothing itself
	idle    atomic.Int32
	stop    <-chan struct{} // ends the idle ones, and the others once they become idle
	running sync.WaitGroup
}

func newSenders(stop <-chan struct{}) *senders {
	return &senders{tasks: make(chan func()), stop: stop}
}

// do runs the task in a goroutine of its own and does not wait for it, nor for one to be free.
func (s *senders) do(task func()) {
	select {
	case s.tasks <- task:
	default:
		s.running.Go(func() { s.serve(task) })
	}
}

func (s *senders) serve(task func()) {
	for {
		task()
		if s.idle.Add(1) > maxIdleSenders {
			s.idle.Add(-1)
			return
		}
		select {
		case task = <-s.tasks:
			s.idle.Add(-1)
		case <-s.stop:
			return
		}
	}
}
