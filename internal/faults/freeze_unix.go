//go:build unix

package faults

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// FreezeSelf stops this process as kill -STOP does, and returns when it is continued.
func FreezeSelf() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		panic(fmt.Sprintf("crash point cannot freeze its own process: %v", err))
	}
	// The stop may reach this thread only some instructions later. What follows the crash point must not run by then.
	<-continued
}
