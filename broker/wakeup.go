package broker

import (
	"sync"
	"time"
)

// wakeup is a signal to one loop that never blocks its sender: many pokes
// between two looks are one. The zero value is ready.
type wakeup struct {
	once sync.Once
	ch   chan struct{}
}

func (w *wakeup) c() chan struct{} {
	w.once.Do(func() { w.ch = make(chan struct{}, 1) })
	return w.ch
}

func (w *wakeup) poke() {
	select {
	case w.c() <- struct{}{}:
	default:
	}
}

// maxSleep makes loops look again now and then, so that a step of the clock
// delays nothing for long.
const maxSleep = time.Second

// sleep returns false when the broker stops.
func (b *Broker) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.stop:
		return false
	}
}

// sleepOrWake sleeps d, at most maxSleep, or until poked. It returns false when
// the broker stops.
func (b *Broker) sleepOrWake(d time.Duration, wake *wakeup) bool {
	timer := time.NewTimer(min(max(d, 0), maxSleep))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake.c():
	case <-b.stop:
		return false
	}
	return true
}
