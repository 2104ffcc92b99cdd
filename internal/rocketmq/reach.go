package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/halfbox/halfbox/internal/remoting"
)

const (
	// reachRouteTimeout leaves time to ask the brokers when a name server says nothing.
	reachRouteTimeout = 700 * time.Millisecond
	// reachFresh is how long an answer is given again: however often somebody asks, the cluster is asked twice a second.
	reachFresh = 500 * time.Millisecond
)

// Reach tells whether RocketMQ can be used now, with connections of its own. It is safe for concurrent use.
type Reach struct {
	directory
	turn  chan struct{} // has a value while somebody asks; it guards the rest
	known []string      // the brokers that the name servers named last
	asked time.Time     // when works and err were found
	works bool
	err   error
}

// NewReach looks at the brokers of a topic.
func NewReach(nameServers []string, topic string, creds Credentials) *Reach {
	return &Reach{directory: newDirectory(nameServers, topic, creds), turn: make(chan struct{}, 1)}
}

// Check asks name servers and brokers, unless that was done just now. The error is nil when all is well, else it says
// what is not; works tells whether some broker can be used all the same: clients that know the brokers need no name
// server.
func (r *Reach) Check(ctx context.Context) (works bool, err error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if !r.asked.IsZero() && time.Since(r.asked) < reachFresh {
		return r.works, r.err
	}
	works, err = r.look(ctx)
	if !errors.Is(ctx.Err(), context.Canceled) { // who does not wait for the answer spoils it for nobody
		r.asked, r.works, r.err = time.Now(), works, err
	}
	return works, err
}

func (r *Reach) look(ctx context.Context) (works bool, err error) {
	bound, cancel := context.WithTimeout(ctx, reachRouteTimeout)
	brokers, err := r.masters(bound)
	cancel()
	if err == nil {
		r.known = brokers
	} else {
		err, brokers = fmt.Errorf("name server: %w", err), r.known
	}
	answers := make([]error, len(brokers))
	var asking sync.WaitGroup
	for i, addr := range brokers {
		asking.Go(func() { answers[i] = r.checkBroker(ctx, addr) })
	}
	asking.Wait()
	for _, answer := range answers {
		works = works || answer == nil
	}
	return works, errors.Join(append(answers, err)...)
}

func (r *Reach) checkBroker(ctx context.Context, addr string) error {
	conn, err := remoting.Dial(ctx, addr, r.creds)
	if err != nil {
		return fmt.Errorf("broker %s: %w", addr, err)
	}
	answer, err := r.ask(ctx, conn)
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("broker %s: %w", addr, err)
	}
	if err := answer.Refused(); err != nil {
		return fmt.Errorf("broker %s: %w", addr, err)
	}
	return nil
}
