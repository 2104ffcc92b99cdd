package outboxtest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/outbox"
)

// Answer is what the far end says to one send. It may wait for ctx to end.
type Answer func(ctx context.Context, batch []outbox.Record) error

// Recorder is a sink in memory that records what it is sent, and whose faults are scripted. Without a script it
// confirms everything. It is safe for concurrent use.
type Recorder struct {
	name string

	mu        sync.Mutex
	script    []Answer
	always    Answer
	confirmed []outbox.Record
	sends     [][]outbox.Record
}

var _ outbox.Sink = (*Recorder)(nil)

// NewSink returns a sink with this name.
func NewSink(name string) *Recorder { return &Recorder{name: name} }

// Name is the name that records carry.
func (r *Recorder) Name() string { return r.name }

// Send records batch and gives the next answer.
func (r *Recorder) Send(ctx context.Context, batch []outbox.Record) error {
	answer := r.next(batch)
	var err error
	if answer != nil {
		err = answer(ctx, batch)
	}
	if err == nil {
		r.mu.Lock()
		r.confirmed = append(r.confirmed, slices.Clone(batch)...)
		r.mu.Unlock()
	}
	return err
}

func (r *Recorder) next(batch []outbox.Record) Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sends = append(r.sends, slices.Clone(batch))
	if len(r.script) == 0 {
		return r.always
	}
	answer := r.script[0]
	r.script = r.script[1:]
	return answer
}

// Then appends answers to the script: one for each of the next sends, in this order. When they are used up, every
// send gets the answer of Always. A relay splits a batch that fails, so a fault may cost more than one send.
func (r *Recorder) Then(answers ...Answer) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = append(r.script, answers...)
	return r
}

// Always sets the answer of every send that the script does not cover; nil confirms them.
func (r *Recorder) Always(answer Answer) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.always = answer
	return r
}

// OK confirms.
func OK() Answer { return nil }

// Fail answers with err; wrap it with outbox.Refused, outbox.Unreachable or outbox.Timeout to say of which kind it is.
func Fail(err error) Answer {
	return func(context.Context, []outbox.Record) error { return err }
}

// Hang gives no answer until the relay gives up.
func Hang() Answer {
	return func(ctx context.Context, _ []outbox.Record) error {
		<-ctx.Done()
		return outbox.Timeout(context.Cause(ctx))
	}
}

// FailFor answers err to batches with an event of this business number, and confirms the others.
func FailFor(bizNo string, err error) Answer {
	return func(_ context.Context, batch []outbox.Record) error {
		if slices.ContainsFunc(batch, func(r outbox.Record) bool { return r.BizNo == bizNo }) {
			return err
		}
		return nil
	}
}

// Confirmed are the records that were confirmed, in the order in which they were.
func (r *Recorder) Confirmed() []outbox.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.confirmed)
}

// Sends are the batches that were sent, whatever the answer was.
func (r *Recorder) Sends() [][]outbox.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sends)
}

// Events decodes what was confirmed.
func (r *Recorder) Events(t testing.TB) (events []halfbox.Event) {
	t.Helper()
	for _, rec := range r.Confirmed() {
		_, ev, err := halfbox.Decode(rec.Payload)
		if err != nil {
			t.Fatalf("outboxtest: message %s: %v", rec.MsgID, err)
		}
		events = append(events, ev)
	}
	return events
}

// Await waits until n records were confirmed, duplicates included, and returns them. It fails the test after a minute.
func (r *Recorder) Await(t testing.TB, n int) []outbox.Record {
	t.Helper()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(awaitTime); ; <-poll.C {
		got := r.Confirmed()
		if len(got) >= n {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("outboxtest: %d of %d records were confirmed by sink %s, in %d sends", len(got), n, r.name, len(r.Sends()))
			return nil
		}
	}
}
