package main

import (
	"context"
	"errors"
	"sync"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

// errDown is what a send meets while the output plays an outage.
var errDown = errors.New("broker is down")

// output is the way to RocketMQ and the record of what the broker has confirmed. It is safe for concurrent use.
type output struct {
	producer    client.Producer
	nameServers []string
	group       string

	mu        sync.Mutex
	confirmed map[string]int // order number -> times
	slow      time.Duration
	downAfter int // sends are refused once so many messages are confirmed; negative: never
	down      time.Duration
	upAt      time.Time
}

func newOutput(nameServer, group string) (*output, error) {
	// The bare loop ends with a send that fails. A broker that is slow once must not be its end.
	p, err := rocketmq.NewProducer(rocketmq.ProducerConfig{NameServers: []string{nameServer}, Group: group, SendTimeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	return &output{producer: p, nameServers: []string{nameServer}, group: group + "_sink", confirmed: map[string]int{}, downAfter: -1}, nil
}

func (o *output) close() error { return o.producer.Shutdown() }

// forget begins a new phase.
func (o *output) forget(slow time.Duration, downAfter int, down time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.confirmed = map[string]int{}
	o.slow, o.downAfter, o.down, o.upAt = slow, downAfter, down, time.Time{}
}

// send has one message, or many as one batch, confirmed by the broker.
func (o *output) send(ctx context.Context, keys []string, msgs ...*primitive.Message) error {
	if err := o.admit(ctx, len(keys)); err != nil {
		return err
	}
	res, err := o.producer.SendSync(ctx, msgs...)
	if err != nil {
		return err
	}
	if res.Status != primitive.SendOK {
		return errors.New("not stored safely")
	}
	o.confirm(keys)
	return nil
}

// admit plays the slow and the missing broker.
func (o *output) admit(ctx context.Context, n int) error {
	o.mu.Lock()
	slow := o.slow
	var err error
	if o.downAfter >= 0 && len(o.confirmed)+n > o.downAfter {
		if o.upAt.IsZero() {
			o.upAt = time.Now().Add(o.down)
		}
		if time.Now().Before(o.upAt) {
			err = errDown
		}
	}
	o.mu.Unlock()
	if err != nil || slow == 0 {
		return err
	}
	return pause(ctx, slow)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *output) confirm(keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range keys {
		o.confirmed[k]++
	}
}

// count returns how many different orders were confirmed, and how many confirmations were repetitions.
func (o *output) count() (orders, repeated int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, times := range o.confirmed {
		repeated += times - 1
	}
	return len(o.confirmed), repeated
}

// await waits until n orders were confirmed. It gives up when quiet passes without a new one, and returns the time
// of the last.
func (o *output) await(ctx context.Context, n int, quiet time.Duration) (last time.Time, err error) {
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	seen := -1
	for {
		got, _ := o.count()
		if got != seen {
			seen, last = got, time.Now()
		}
		if got >= n || time.Since(last) > quiet {
			return last, nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return last, context.Cause(ctx)
		}
	}
}
