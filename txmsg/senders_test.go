package txmsg

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// No task waits for another one, idle senders serve again, as many stay as may, and none survives the stop.
func TestSenders(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	s := newSenders(stop)
	const n = maxIdleSenders + 10
	for range 3 {
		arrived, leave := make(chan struct{}), make(chan struct{})
		for range n {
			s.do(func() {
				arrived <- struct{}{}
				<-leave
			})
		}
		for range n {
			<-arrived
		}
		require.LessOrEqual(t, s.idle.Load(), int32(n-maxIdleSenders), "all are busy but who was late in the round before")
		close(leave)
		require.Eventually(t, func() bool { return s.idle.Load() == maxIdleSenders }, time.Minute, time.Millisecond)
	}
	close(stop)
	s.running.Wait()
}

// A task may end its goroutine, as a test's FailNow does in a local transaction.
func TestSenderWhoseTaskEndsIt(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	s := newSenders(stop)
	ended := make(chan struct{})
	s.do(func() {
		defer close(ended)
		runtime.Goexit()
	})
	<-ended
	served := make(chan struct{})
	s.do(func() { close(served) })
	<-served
	close(stop)
	s.running.Wait()
}
