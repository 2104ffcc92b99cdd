package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/halfbox/halfbox/internal/remoting"
)

// reachRouteTimeout leaves time to ask the brokers when a name server says nothing.
const reachRouteTimeout = 700 * time.Millisecond

// Reach tells whether RocketMQ can be used now, with connections of its own. It is safe for concurrent use.
type Reach struct {
	directory
	mu    sync.Mutex
	known []string // the brokers that the name servers named last
}

// NewReach looks at the brokers of a topic.
func NewReach(nameServers []string, topic string, creds Credentials) *Reach {
	return &Reach{directory: newDirectory(nameServers, topic, creds)}
}

// Check asks name servers and brokers. The error is nil when all is well, else it says what is not; works tells
// whether some broker can be used all the same: clients that know the brokers need no name server.
func (r *Reach) Check(ctx context.Context) (works bool, err error) {
	bound, cancel := context.WithTimeout(ctx, reachRouteTimeout)
	brokers, err := r.masters(bound)
	cancel()
	r.mu.Lock()
	if err == nil {
		r.known = brokers
	} else {
		err, brokers = fmt.Errorf("name server: %w", err), r.known
	}
	r.mu.Unlock()
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
