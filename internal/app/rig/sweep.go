package rig

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/halfbox/halfbox/internal/remoting"
)

// The requests that list what a broker has.
const (
	codeAllTopics = 21
	codeAllGroups = 201
)

const (
	sweepTimeout = 20 * time.Second
	sweepPause   = 300 * time.Millisecond
	sweepClean   = 3 // looks in a row that find nothing
)

// Sweep removes what is left of the run's topics and groups at the cluster, and looks again until nothing comes back: a
// broker makes a group anew for a client of which it has not noticed yet that it is gone. The error names what stays.
func (e *Engines) Sweep(ctx context.Context) error {
	if e.Config.RocketMQ.Embedded() {
		return nil
	}
	return e.sweep(ctx, e.run)
}

// sweep is Sweep for any run.
func (e *Engines) sweep(ctx context.Context, run string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
	defer cancel()
	for clean := 0; clean < sweepClean; {
		left, err := e.left(ctx, run)
		if err == nil && len(left) == 0 {
			clean++
		} else {
			clean = 0
			e.deleteAll(ctx, left)
		}
		pause := time.NewTimer(sweepPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			if err == nil {
				err = errors.New("they stay although the broker was told to delete them")
			}
			return fmt.Errorf("topics and groups are left at RocketMQ, remove them with mqadmin: %s: %w", strings.Join(append(left, run+"..."), ", "), err)
		}
	}
	return nil
}

// left lists the topics and groups of a run that the brokers have.
func (e *Engines) left(ctx context.Context, run string) (found []string, err error) {
	ours := regexp.MustCompile(`"((?:%(?:RETRY|DLQ)%)?` + run + `_[a-z0-9_]+)"`)
	brokers, err := remoting.Masters(ctx, e.nameServer(), e.credentials())
	for _, addr := range brokers {
		for _, code := range []int{codeAllTopics, codeAllGroups} {
			a, askErr := remoting.Ask(ctx, addr, code, nil, e.credentials())
			if askErr == nil && a.Code != remoting.CodeOK && a.Code != remoting.CodeNotSupported {
				askErr = fmt.Errorf("%s answers code %d: %s", addr, a.Code, a.Remark)
			}
			err = errors.Join(err, askErr)
			for _, m := range ours.FindAllSubmatch(a.Body, -1) {
				found = append(found, string(m[1]))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), err
}

// deleteAll asks for the removal of names, of which it does not know whether they are topics or groups. What the broker
// says to it does not count: brokers without a timer store (timerWheelEnable=false) delete a topic and then answer with
// an error of theirs. The next look decides.
func (e *Engines) deleteAll(ctx context.Context, left []string) {
	for _, name := range left {
		_ = remoting.DeleteTopic(ctx, e.nameServer(), name, e.credentials())
		if !strings.HasPrefix(name, "%") && strings.HasSuffix(name, "group") {
			_ = remoting.DeleteGroup(ctx, e.nameServer(), name, e.credentials())
		}
	}
}
