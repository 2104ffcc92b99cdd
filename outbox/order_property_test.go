package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// TestOrderOfKeysUnderRandomSchedules: three relays with one sink, which are interrupted by each other between claim
// and send and between send and mark, die there, come back after their lease has been taken over, and meet every
// failure of a sink. The first occurrences of each key arrive in the order of its versions: nothing arrives before
// everything lower has, unless that was set aside as a dead letter. And in the end everything arrives.
func TestOrderOfKeysUnderRandomSchedules(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		for _, policy := range []HeadOfLine{HeadOfLineBlock, HeadOfLinePark} {
			rapid.Check(t, func(rt *rapid.T) {
				s := newOrderSchedule(rt, t, db, mode, policy)
				rt.Repeat(map[string]func(*rapid.T){
					"write": s.write, "round": s.round, "another round": s.round, "expire": s.expire, "due": s.due, "redrive": s.redrive, "": s.check,
				})
				s.finish(rt)
			})
		}
	})
}

// errAbandon ends a relay in the middle of its round.
var errAbandon = errors.New("abandoned")

type orderSchedule struct {
	test    *testing.T
	t       *rapid.T // of the step
	db      *database.DB
	w       *Writer
	policy  HeadOfLine
	relays  []*Relay
	busy    []bool // in the middle of its round
	calm    bool   // nothing fails any more
	written map[string][]int64
	arrived map[string][]int64 // first occurrences
	aside   map[string]bool    // key/version that was a dead letter at some time
	problem string
}

func newOrderSchedule(rt *rapid.T, t *testing.T, db *database.DB, mode ClaimMode, policy HeadOfLine) *orderSchedule {
	require.NoError(rt, db.Write.Exec("DELETE FROM t_event_record").Error)
	s := &orderSchedule{
		test: t, t: rt, db: db, policy: policy, busy: make([]bool, 3),
		written: map[string][]int64{}, arrived: map[string][]int64{}, aside: map[string]bool{},
		w: newTestWriter(t, db, func(c *WriterConfig) { c.Ordered = true }),
	}
	for i := range s.busy {
		sink := newFakeSink(s.answer)
		cfg := testConfig(t, db, probedSink{sink})
		sink.probe = func(context.Context) error { return nil }
		cfg.Claim, cfg.Instance, cfg.Batch = mode, fmt.Sprint("relay", i), rapid.IntRange(1, 4).Draw(rt, "batch")
		cfg.Ordered, cfg.MaxRetries, cfg.Logger = map[string]HeadOfLine{"main": policy}, 1, zap.NewNop()
		cfg.Hooks = Hooks{AfterClaim: func() { s.interrupt(i) }, AfterSend: func() { s.interrupt(i) }}
		s.relays = append(s.relays, newTestRelay(t, cfg))
		s.restart(i)
	}
	return s
}

// restart makes the loop of relay i anew: whatever it remembered is gone.
func (s *orderSchedule) restart(i int) {
	r := s.relays[i]
	r.loops[0] = newLoop(r.cfg, r.store, r.metrics, r.cfg.Sinks[0])
	r.loops[0].order.least, r.loops[0].order.page = 2, 2
	s.busy[i] = false
}

func (s *orderSchedule) write(t *rapid.T) {
	key := rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "key")
	version := int64(rapid.IntRange(1, 3).Draw(t, "step"))
	if have := s.written[key]; len(have) > 0 {
		version += have[len(have)-1]
	}
	ev := event(key)
	ev.AggregateVersion, ev.Type = version, fmt.Sprint("order.v", version)
	require.NoError(t, s.db.InTx(context.Background(), func(tx *gorm.DB) error {
		at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
		require.NoError(t, err)
		return s.w.WriteTx(tx, ev, at)
	}))
	s.written[key] = append(s.written[key], version)
}

func (s *orderSchedule) round(t *rapid.T) {
	s.t = t
	s.roundOf(rapid.IntRange(0, len(s.relays)-1).Draw(t, "relay"))
}

// roundOf runs a round of relay i unless it is in one.
func (s *orderSchedule) roundOf(i int) {
	if s.busy[i] {
		return
	}
	s.busy[i] = true
	defer func() {
		s.busy[i] = false
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.Is(err, errAbandon) {
				panic(p)
			}
			s.restart(i)
		}
	}()
	l := s.relays[i].loops[0]
	if !l.breaker.openUntil.IsZero() {
		l.breaker.openUntil = time.Now()
	}
	l.pace.stop()
	_, err := l.runOnce(context.Background(), context.Background())
	require.NoError(s.t, err)
}

// interrupt is what happens while relay i is between two of its steps.
func (s *orderSchedule) interrupt(i int) {
	if s.calm {
		return
	}
	switch rapid.SampledFrom([]string{"go on", "other", "die", "freeze"}).Draw(s.t, "interruption") {
	case "other":
		s.roundOf((i + 1) % len(s.relays))
	case "die":
		panic(errAbandon)
	case "freeze": // for longer than its lease, and somebody else takes over
		s.expire(s.t)
		s.roundOf((i + 1) % len(s.relays))
		s.roundOf((i + 2) % len(s.relays))
	}
}

func (s *orderSchedule) answer(_ context.Context, batch []Record) error {
	outcome := "ok"
	if !s.calm {
		outcome = rapid.SampledFrom([]string{"ok", "ok", "ok", "error", "refused", "unreachable", "timeout", "answer lost"}).Draw(s.t, "outcome")
	}
	if outcome == "ok" || outcome == "answer lost" {
		s.arrive(batch)
	}
	switch outcome {
	case "error":
		return errors.New("no")
	case "refused":
		return Refused(errors.New("no"))
	case "unreachable":
		return Unreachable(errors.New("down"))
	case "timeout", "answer lost":
		return Timeout(errors.New("no answer"))
	}
	return nil
}

func (s *orderSchedule) arrive(batch []Record) {
	for _, r := range batch {
		key := r.PartitionKey
		if slices.Contains(s.arrived[key], r.AggregateVersion) {
			continue
		}
		s.noteDeadLetters()
		for _, lower := range s.written[key] {
			if lower >= r.AggregateVersion {
				break
			}
			excused := s.policy == HeadOfLinePark && s.aside[fmt.Sprint(key, lower)]
			if !slices.Contains(s.arrived[key], lower) && !excused {
				s.problem = fmt.Sprintf("version %d of %s arrived before version %d", r.AggregateVersion, key, lower)
			}
		}
		s.arrived[key] = append(s.arrived[key], r.AggregateVersion)
	}
}

func (s *orderSchedule) noteDeadLetters() {
	for _, e := range entries(s.test, s.db) {
		if e.Status == StatusFail {
			s.aside[fmt.Sprint(e.PartitionKey, e.AggregateVersion)] = true
		}
	}
}

func (s *orderSchedule) expire(t *rapid.T) {
	expire(s.test, s.db)
	_, err := s.relays[0].reclaimOnce(context.Background())
	require.NoError(t, err)
}

func (s *orderSchedule) due(*rapid.T) { makeDue(s.test, s.db) }

// redrive puts one dead letter back.
func (s *orderSchedule) redrive(t *rapid.T) {
	s.noteDeadLetters()
	_, err := newStore(s.db).exec(context.Background(), `UPDATE t_event_record SET status = 'WAIT', claim_owner = NULL, retry_count = 0, reclaim_count = 0,
 next_retry_time = {now+} WHERE id IN (SELECT id FROM (SELECT MIN(id) AS id FROM t_event_record WHERE status = 'FAIL') AS x)`, s.db.Dialect.Offset(-time.Second))
	require.NoError(t, err)
}

func (s *orderSchedule) check(t *rapid.T) { require.Empty(t, s.problem) }

// finish lets everything arrive.
func (s *orderSchedule) finish(t *rapid.T) {
	s.t, s.calm = t, true
	s.expire(t)
	total := 0
	for _, versions := range s.written {
		total += len(versions)
	}
	for range 20 + 4*total {
		s.redrive(t)
		s.due(t)
		for i := range s.relays {
			s.roundOf(i)
		}
		s.check(t)
		if countStatus(s.test, s.db, StatusSuccess) == total {
			break
		}
	}
	require.Equal(t, total, countStatus(s.test, s.db, StatusSuccess))
	for key, versions := range s.written {
		require.ElementsMatch(t, versions, s.arrived[key])
	}
}
