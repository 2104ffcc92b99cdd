package enginetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// stopTimeout bounds an ordinary stop: a broker takes ten seconds when nothing else runs.
const stopTimeout = 60 * time.Second

// Process is one server of an engine that belongs to a test. Its methods fail the test when they do not succeed, so
// they are called from the test's own goroutine.
type Process struct {
	own  *owned
	name string // as in its pid file
}

// Stop ends the server in the ordinary way and waits for its end.
func (p *Process) Stop() {
	p.own.t.Helper()
	p.end(syscall.SIGTERM)
}

// Kill ends the server at once, as kill -9 does, and waits until it is gone.
func (p *Process) Kill() {
	p.own.t.Helper()
	p.end(syscall.SIGKILL)
}

// Start starts the engine's servers that do not run, at the ports they had, and waits until they are ready.
func (p *Process) Start() {
	p.own.t.Helper()
	p.own.up()
}

// Pause freezes the server: connections stay open and nothing is answered.
func (p *Process) Pause() {
	p.own.t.Helper()
	p.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	require.NoError(p.own.t, untilNil(ctx, time.Millisecond, p.stopped))
}

// stopped says why not when the server has a thread that still runs: SIGSTOP does not wait for them.
func (p *Process) stopped() error {
	pid, err := p.pid()
	if err != nil {
		return err
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		fields, err := statFields(thread)
		if err == nil && fields[0] != "T" {
			return fmt.Errorf("%s still runs: %s is in state %s", p.name, thread, fields[0])
		}
	}
	return nil
}

// Resume ends Pause.
func (p *Process) Resume() {
	p.own.t.Helper()
	p.signal(syscall.SIGCONT)
}

// Running tells whether the server's process is there, frozen or not.
func (p *Process) Running() bool {
	_, err := p.pid()
	return err == nil
}

func (p *Process) end(sig syscall.Signal) {
	p.own.t.Helper()
	p.signal(sig)
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := untilNil(ctx, 10*time.Millisecond, func() error {
		if p.Running() {
			return fmt.Errorf("%s still runs", p.name)
		}
		return nil
	})
	require.NoError(p.own.t, err)
}

func (p *Process) signal(sig syscall.Signal) {
	p.own.t.Helper()
	pid, err := p.pid()
	require.NoError(p.own.t, err)
	require.NoError(p.own.t, syscall.Kill(pid, sig), "%s, pid %d", p.name, pid)
}

// pid returns the server's process id, checked against the time at which that process started: a signal must not
// reach whoever has the number now.
func (p *Process) pid() (int, error) {
	text, err := os.ReadFile(filepath.Join(p.own.dir, p.name+".pid"))
	if err != nil {
		return 0, err
	}
	id, started, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err := strconv.Atoi(id)
	if err != nil {
		return 0, fmt.Errorf("%s.pid: %w", p.name, err)
	}
	now, err := startTime(pid)
	if err != nil {
		return 0, fmt.Errorf("%s does not run: %w", p.name, err)
	}
	if now != started {
		return 0, fmt.Errorf("%s does not run: pid %d is another process now", p.name, pid)
	}
	return pid, nil
}

// startTime is when a process started, as /proc says it.
func startTime(pid int) (string, error) {
	fields, err := statFields(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The state is the third field of all, the number of threads the 20th, the start time the 22nd. The first thread of a
	// killed process can be a zombie while others still hold its files and ports.
	if fields[0] == "Z" && (fields[17] == "0" || fields[17] == "1") {
		return "", errors.New("it has ended")
	}
	return fields[19], nil
}

// statFields reads a stat file of /proc from the third field on: the second, the name in parentheses, may hold anything.
func statFields(file string) ([]string, error) {
	stat, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(stat[max(0, strings.LastIndex(string(stat), ")")):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return nil, fmt.Errorf("%s cannot be read", file)
	}
	return fields, nil
}
