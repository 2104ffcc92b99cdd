package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/halfbox/halfbox"
)

// Outcome is what the caller of the API saw.
type Outcome string

// The outcomes.
const (
	Created     Outcome = "201"
	Unknown     Outcome = "503 outcome-unknown"
	Overloaded  Outcome = "503 overloaded"
	Unavailable Outcome = "503 unavailable"
	NoAnswer    Outcome = "no answer" // refused, reset or timed out
	Other       Outcome = "other"
)

// Outcomes lists them, the best first.
func Outcomes() []Outcome {
	return []Outcome{Created, Unknown, Unavailable, Overloaded, NoAnswer, Other}
}

// callTimeout is the caller's patience.
const callTimeout = 10 * time.Second

// call is one order to be sent.
type call struct {
	userID, amountCents int64
	after               time.Duration // open loop: when it is due, from the beginning of the load
}

// workload plans n orders. The same seed plans the same orders; with a rate (orders per second) they are due at the
// times of a Poisson process, as callers who know nothing of one another come.
func workload(seed uint64, n int, rate float64) []call {
	random := rand.New(rand.NewPCG(seed, 0x68616c66626f78))
	calls := make([]call, n)
	due := 0.0
	for i := range calls {
		calls[i] = call{userID: 1 + random.Int64N(200), amountCents: 100 + random.Int64N(100_000)}
		if rate > 0 {
			calls[i].after = time.Duration(due * float64(time.Second))
			due += random.ExpFloat64() / rate
		}
	}
	return calls
}

// workloadDuring plans the orders that come in during a time, however many they are.
func workloadDuring(seed uint64, during time.Duration, rate float64) []call {
	for n := int(rate*during.Seconds()) + 1; ; n *= 2 {
		calls := workload(seed, n, rate)
		if late := slices.IndexFunc(calls, func(c call) bool { return c.after > during }); late >= 0 {
			return calls[:late]
		}
	}
}

// sample is one call that was made.
type sample struct {
	intended, done time.Time
	outcome        Outcome
	orderNo, msgID string
}

func (s sample) latency() time.Duration { return s.done.Sub(s.intended) }

// caller calls the API of one site.
type caller struct {
	url      string
	delivery halfbox.Delivery
	client   *http.Client
}

func newCaller(url string, d halfbox.Delivery) *caller {
	return &caller{url: url + "/api/v1/orders", delivery: d, client: &http.Client{
		Timeout: callTimeout,
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: time.Second}).DialContext,
			MaxIdleConnsPerHost: 512,
		},
	}}
}

func (c *caller) close() { c.client.CloseIdleConnections() }

// call sends one order. No Idempotency-Key is sent: with one, Go's client would repeat a request whose connection
// broke, and the caller would not see what happened.
func (c *caller) call(ctx context.Context, o call) (out Outcome, orderNo, msgID string) {
	body := fmt.Appendf(nil, `{"user_id":%d,"amount_cents":%d,"delivery":%q}`, o.userID, o.amountCents, c.delivery)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return Other, "", ""
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.client.Do(req)
	if err != nil {
		return NoAnswer, "", ""
	}
	defer res.Body.Close()
	var answer struct {
		OrderNo string `json:"order_no"`
		MsgID   string `json:"msg_id"`
		Type    string `json:"type"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&answer); err != nil {
		return NoAnswer, "", ""
	}
	_, _ = io.Copy(io.Discard, res.Body) // so that the connection is used again
	switch {
	case res.StatusCode == http.StatusCreated:
		return Created, answer.OrderNo, answer.MsgID
	case answer.Type == "/problems/outcome-unknown":
		return Unknown, answer.OrderNo, ""
	case answer.Type == "/problems/overloaded":
		return Overloaded, "", ""
	case res.StatusCode == http.StatusServiceUnavailable:
		return Unavailable, "", ""
	}
	return Other, "", ""
}

// sampled makes one call and notes it. Its latency counts from intended.
func (c *caller) sampled(ctx context.Context, o call, intended time.Time) sample {
	out, no, id := c.call(ctx, o)
	return sample{intended: intended, done: time.Now(), outcome: out, orderNo: no, msgID: id}
}

// closedLoop makes the calls by n callers, each of which sends its next order when it has the answer to its last.
func (c *caller) closedLoop(ctx context.Context, calls []call, n int) []sample {
	var (
		mu      sync.Mutex
		next    int
		samples = make([]sample, 0, len(calls))
		callers sync.WaitGroup
	)
	for range n {
		callers.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(calls) || ctx.Err() != nil {
					return
				}
				s := c.sampled(ctx, calls[i], time.Now())
				if s.outcome == NoAnswer && ctx.Err() != nil {
					return // the caller has hung up, which says nothing
				}
				mu.Lock()
				samples = append(samples, s)
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	return samples
}

// openLoop makes each call when it is due, whatever became of the ones before: a service that stands still does not
// stop its callers, and their wait counts.
func (c *caller) openLoop(ctx context.Context, calls []call) []sample {
	var (
		mu      sync.Mutex
		samples = make([]sample, 0, len(calls))
		flying  sync.WaitGroup
		began   = time.Now()
	)
	for _, o := range calls {
		intended := began.Add(o.after)
		if !sleepUntil(ctx, intended) {
			break
		}
		flying.Go(func() {
			s := c.sampled(ctx, o, intended)
			if s.outcome == NoAnswer && ctx.Err() != nil {
				return // the caller has hung up, which says nothing
			}
			mu.Lock()
			samples = append(samples, s)
			mu.Unlock()
		})
	}
	flying.Wait()
	return samples
}

// sleepUntil reports false when ctx ended first.
func sleepUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// errNotSettled is the reason when orders are still missing at the deadline although nothing says that they are lost.
var errNotSettled = errors.New("orders were still on their way at the deadline")
