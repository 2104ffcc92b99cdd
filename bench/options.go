package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// options say what to measure.
type options struct {
	dsn, nameServer string
	peers           string
	events          int
	live            int
	writers         int
	batch           int
	rounds          int
	slow            time.Duration
	outage          bool
}

func (o options) validate() error {
	if o.dsn == "" || o.nameServer == "" {
		return errors.New(`no engines: eval "$(scripts/engines up)" first, or name them with -mysql and -rocketmq`)
	}
	for _, n := range []int{o.events, o.writers, o.batch, o.rounds} {
		if n < 1 {
			return errors.New("-events, -writers, -batch and -rounds must be at least 1")
		}
	}
	if o.live < 0 || o.slow < 0 {
		return errors.New("-live and -slow must not be negative")
	}
	for _, name := range o.names() {
		if !slices.Contains(peerNames(), name) {
			return fmt.Errorf("peer %q: there are %s", name, strings.Join(peerNames(), ", "))
		}
	}
	return nil
}

func (o options) names() []string { return strings.Split(o.peers, ",") }
