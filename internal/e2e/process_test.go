package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// binary is the program under test, built once by TestMain.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "halfbox-e2e-")
	if err == nil {
		binary = filepath.Join(dir, "halfbox")
		build := exec.Command("go", "build", "-o", binary, "github.com/halfbox/halfbox/cmd/halfbox")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the program:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

const (
	wait = 60 * time.Second // bounds what a test waits for; nothing takes that long
	tick = 10 * time.Millisecond
)

// process is one run of the program.
type process struct {
	cmd    *exec.Cmd
	api    string
	admin  string
	broker string
	exited chan struct{} // closed when it has ended; state is set then
	state  *os.ProcessState

	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

var (
	readyLine       = regexp.MustCompile(`^halfbox is ready:(?: api (\S+))? operator (\S+)(?: broker (\S+))?`)
	brokerReadyLine = regexp.MustCompile(`^halfbox broker is ready: (\S+)`)
)

// launch starts the program without waiting for anything; ready gets true with its ready line.
func launch(t testing.TB, env []string, args ...string) (p *process, ready <-chan bool) {
	t.Helper()
	p = &process{cmd: exec.Command(binary, args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	seen := make(chan bool, 1)
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if m := readyLine.FindStringSubmatch(lines.Text()); m != nil {
				p.api, p.admin, p.broker = m[1], m[2], m[3]
				seen <- true
			} else if m := brokerReadyLine.FindStringSubmatch(lines.Text()); m != nil {
				p.broker = m[1]
				seen <- true
			}
		}
		close(seen)
		_, _ = io.Copy(io.Discard, stdout)
		_ = p.cmd.Wait() // its verdict is in ProcessState
		p.state = p.cmd.ProcessState
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("halfbox %v:\n%s", args, p.stderr())
		}
	})
	return p, seen
}

func awaitReady(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	p, ready := launch(t, env, args...)
	select {
	case ok := <-ready:
		if ok {
			return p
		}
		<-p.exited
		require.True(t, p.killed(), "%v ended by itself:\n%s", args, p.stderr())
		return nil
	case <-time.After(wait):
		t.Fatalf("%v was not ready in time:\n%s", args, p.stderr())
		return nil
	}
}

// kill ends the process as kill -9 does and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.exited
}

// awaitKilled waits until the process has died at its crash point.
func (p *process) awaitKilled(t testing.TB) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(wait):
		t.Fatal("the crash point was not reached")
	}
	require.True(t, p.killed())
}

// stop ends the process as Ctrl-C does and returns its exit code.
func (p *process) stop(t testing.TB) int {
	t.Helper()
	err := p.cmd.Process.Signal(os.Interrupt)
	if !errors.Is(err, os.ErrProcessDone) {
		require.NoError(t, err)
	}
	select {
	case <-p.exited:
	case <-time.After(wait):
		t.Fatalf("did not stop:\n%s", p.stderr())
	}
	return p.state.ExitCode()
}

// signal sends a signal to a process that runs.
func (p *process) signal(t testing.TB, s os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

// killed tells whether the process was ended by kill -9.
func (p *process) killed() bool {
	status, ok := p.state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
