package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
)

// stopTimeout bounds an orderly end of the child, see app.StopTimeout.
const stopTimeout = 12 * time.Second

// askTimeout bounds the wait for an answer: a run is not given up because its machine stands still for a while.
const askTimeout = time.Minute

// process is the service in a process of its own. ask may be called concurrently.
type process struct {
	cmd     *exec.Cmd
	url     string
	mu      sync.Mutex // one order at a time
	orders  *json.Encoder
	close   func() error
	answers chan answer   // closed at the end of standard output
	exited  chan struct{} // closed when the process is gone
	log     string
}

// start runs the program and waits until its service is ready. Its log is appended to the file log.
func start(ctx context.Context, command []string, cfg configs.Config, log string) (*process, error) {
	logFile, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = logFile.Close() }() // the child has its own
	cmd := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...)
	cmd.Stderr = logFile
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the service: %w", err)
	}
	p := &process{cmd: cmd, orders: json.NewEncoder(in), close: in.Close, answers: make(chan answer), exited: make(chan struct{}), log: log}
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var a answer
			if json.Unmarshal(lines.Bytes(), &a) == nil {
				p.answers <- a
			}
		}
		close(p.answers)
		_ = cmd.Wait() // how it ended is in the log
	}()
	text, err := encodeConfig(cfg)
	if err == nil {
		var a answer
		if a, err = p.ask(ctx, order{Config: text}, readyTimeout+stopTimeout); err == nil {
			p.url = a.URL
			return p, nil
		}
	}
	return nil, errors.Join(err, p.stop())
}

// ask gives one order and waits for its answer. After an error the process is of no use.
func (p *process) ask(ctx context.Context, o order, most time.Duration) (answer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if err := p.orders.Encode(o); err != nil {
		return answer{}, fmt.Errorf("the service has ended: %w%s", err, p.lastWords())
	}
	select {
	case a, ok := <-p.answers:
		if !ok {
			return answer{}, fmt.Errorf("the service has ended%s", p.lastWords())
		}
		return a, nil
	case <-ctx.Done():
		return answer{}, fmt.Errorf("the service does not answer: %w%s", context.Cause(ctx), p.lastWords())
	}
}

func (p *process) counters(ctx context.Context) (compare.Counters, error) {
	a, err := p.ask(ctx, order{}, askTimeout)
	return a.Counters, err
}

// kill ends the process at once and waits until it is gone.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	p.drain()
	return err
}

// stop ends the process in an orderly way, or at once when it takes too long.
func (p *process) stop() error {
	_ = p.close() // the child ends with its standard input
	late := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	p.drain()
	return nil
}

// drain waits for the end of the process; answers that nobody waits for must not hold it up.
func (p *process) drain() {
	_ = p.close()
	for range p.answers {
	}
	<-p.exited
}

// lastWords is the end of the log, for an error.
func (p *process) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil || len(text) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "; the end of its log:\n" + strings.Join(lines[max(0, len(lines)-5):], "\n")
}
