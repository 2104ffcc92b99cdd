// Package faults is the crash points of "serve --fault POINT=kill@N": the process kills itself, as kill -9 would,
// when it reaches POINT for the N-th time. With POINT=freeze@N it stops itself there, as kill -STOP would, until
// somebody sends SIGCONT. The points are hook fields of the libraries' Config structs; without the flag every one of
// them is nil.
package faults

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// AllowVariable must be "1" in the environment, or crash points are refused.
const AllowVariable = "HALFBOX_ALLOW_FAULTS"

// The crash points.
const (
	TxmsgBeforeHalf        = "txmsg.before-half"
	TxmsgAfterHalf         = "txmsg.after-half"
	TxmsgBeforeLocalCommit = "txmsg.before-local-commit"
	TxmsgAfterLocalCommit  = "txmsg.after-local-commit"
	TxmsgAfterEnd          = "txmsg.after-end"
	OutboxAfterClaim       = "outbox.after-claim"
	OutboxAfterSend        = "outbox.after-send"
	OutboxAfterMark        = "outbox.after-mark"
	PointsBeforeCommit     = "points.before-commit"
	PointsAfterCommit      = "points.after-commit"
	CheckbackBeforeAnswer  = "checkback.before-answer"
)

// Points lists every crash point.
func Points() []string {
	return []string{
		TxmsgBeforeHalf, TxmsgAfterHalf, TxmsgBeforeLocalCommit, TxmsgAfterLocalCommit, TxmsgAfterEnd,
		OutboxAfterClaim, OutboxAfterSend, OutboxAfterMark, PointsBeforeCommit, PointsAfterCommit, CheckbackBeforeAnswer,
	}
}

// Set holds the crash points that are armed.
type Set map[string]func()

// Hook is the hook of a point; nil when it is not armed.
func (s Set) Hook(point string) func() { return s[point] }

// Parse reads flags of the form POINT=kill@N or POINT=freeze@N. getenv is os.Getenv; kill ends the process and does
// not return.
func Parse(flags []string, getenv func(string) string, kill func()) (Set, error) {
	if len(flags) == 0 {
		return nil, nil
	}
	if getenv(AllowVariable) != "1" {
		return nil, fmt.Errorf("--fault kills this process on purpose: set %s=1 to allow it", AllowVariable)
	}
	set := Set{}
	for _, flag := range flags {
		point, rest, _ := strings.Cut(flag, "=")
		action, count, _ := strings.Cut(rest, "@")
		n, err := strconv.Atoi(count)
		act := map[string]func(){"kill": kill, "freeze": FreezeSelf}[action]
		if err != nil || n < 1 || act == nil || !slices.Contains(Points(), point) {
			return nil, fmt.Errorf("--fault %q: write POINT=kill@N or POINT=freeze@N with N from 1 and POINT one of %s", flag, strings.Join(Points(), ", "))
		}
		if set[point] != nil {
			return nil, fmt.Errorf("--fault %q: %s is armed already", flag, point)
		}
		var reached atomic.Int64
		set[point] = func() {
			if reached.Add(1) == int64(n) {
				act()
			}
		}
	}
	return set, nil
}

// KillSelf ends this process as kill -9 does: nothing is flushed, nothing deferred runs.
func KillSelf() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(fmt.Sprintf("crash point cannot kill its own process: %v", err))
	}
	select {} // the signal is on its way; nothing more may happen
}
