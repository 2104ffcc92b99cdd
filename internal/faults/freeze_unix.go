//go:build unix

package faults

import (
	"fmt"
	"os"
	"syscall"
)

// FreezeSelf stops this process as kill -STOP does, and returns when it is continued.
func FreezeSelf() {
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		panic(fmt.Sprintf("crash point cannot freeze its own process: %v", err))
	}
}
