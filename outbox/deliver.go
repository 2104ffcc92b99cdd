package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"
)

// hopeless is how many different records may time out one by one, without any answer of the sink in between, before it
// counts as unreachable. If it answers connection probes then, a half-open probe that times out too is itself at fault.
const hopeless = 3

// round is the delivery of one claim.
type round struct {
	lease    *lease
	probe    bool      // the breaker is half-open
	alone    bool      // no other record is due, see claim
	over     bool      // no more sends; what is still held is given back
	down     bool      // the sink is unreachable; counted once
	timedOut []failure // verdict pending until the round ends
	errs     []error   // of write-backs
}

// failure is a send of one row that failed.
type failure struct {
	row   row
	began time.Time
	err   error
}

// deliver sends a claim and writes back what became of each row. Its error is that of a write-back; the rows
// concerned are left to their lease.
func (l *loop) deliver(soft, hard context.Context, c claim, probe, alone bool) error {
	r := &round{lease: l.newLease(c), probe: probe, alone: alone}
	stop := r.lease.keep(hard)
	defer stop()
	for _, rows := range l.chunks(hard, l.failUnreadable(hard, r, c.rows)) {
		if !l.goOn(soft, hard, r) {
			break
		}
		l.sendChunk(soft, hard, r, rows)
	}
	l.judge(hard, r)
	l.settle(hard, r, r.lease.heldIDs(), transition{op: "release", to: StatusWait, run: func(ctx context.Context, ids []int64) (int64, error) {
		return l.store.release(ctx, c.owner, ids)
	}})
	l.metrics.breaker.Set(float64(l.breaker.state(time.Now())))
	return errors.Join(r.errs...)
}

func (l *loop) newLease(c claim) *lease {
	ls := &lease{store: l.store, term: l.cfg.Lease, margin: l.cfg.margin(), stmt: l.cfg.StatementTimeout, every: l.renewEvery}
	ls.miss = func(op string, n int) {
		l.metrics.misses(op).Add(float64(n))
		l.log.Error("lease was lost", zap.String("op", op), zap.String("claim_owner", c.owner), zap.Int("rows", n))
	}
	ls.start(c)
	return ls
}

// sendAlone is true for rows that may spoil a batch. Suspects are claimed alone as it is.
func sendAlone(r row) bool { return r.retries > 0 }

// chunks cuts rows into what one Send takes.
func (l *loop) chunks(ctx context.Context, rows []row) [][]row {
	p, ok := l.sink.(Partitioner)
	if !ok || len(rows) == 0 {
		return chunk(rows, nil, l.sink, sendAlone)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.SendTimeout)
	defer cancel()
	partitions, err := p.Partitions(ctx, records(rows))
	if err == nil && len(partitions) != len(rows) {
		err = fmt.Errorf("%d partitions for %d records", len(partitions), len(rows))
	}
	if err != nil {
		l.log.Debug("partitions are not known, sending one by one", zap.Error(err))
		return chunk(rows, nil, l.sink, func(row) bool { return true })
	}
	return chunk(rows, partitions, l.sink, sendAlone)
}

func records(rows []row) []Record {
	batch := make([]Record, len(rows))
	for i, row := range rows {
		batch[i] = row.rec
	}
	return batch
}

// goOn reports whether one more send may begin: nobody stops us, the sink is there, and the whole send fits into
// the lease.
func (l *loop) goOn(soft, hard context.Context, r *round) bool {
	if r.over || soft.Err() != nil {
		return false
	}
	if !r.lease.ensure(hard, l.cfg.SendTimeout) {
		l.log.Warn("lease is too short for another send, giving the rest back")
		r.over = true
	}
	return !r.over
}

// sendChunk sends rows as one batch; a batch that fails for a reason that may be one event's own is sent again one
// by one.
func (l *loop) sendChunk(soft, hard context.Context, r *round, rows []row) {
	rows = r.lease.begin(rows, l.cfg.SendTimeout)
	if len(rows) == 0 {
		return
	}
	began := time.Now()
	result, err := l.send(hard, r, rows)
	switch result {
	case classSuccess:
		l.markSuccess(hard, r, rows)
	case classUnreachable, classCanceled:
		l.giveUp(hard, r, rows, result, err)
	default:
		if len(rows) == 1 {
			l.failed(hard, r, failure{row: rows[0], began: began, err: err}, result)
			return
		}
		l.batch = l.cfg.Batch // so that a bad event makes few single sends
		l.log.Info("batch failed, sending one by one", zap.String("result", string(result)), zap.Int("events", len(rows)), zap.Error(err))
		l.sendSingles(soft, hard, r, rows)
	}
}

func (l *loop) sendSingles(soft, hard context.Context, r *round, rows []row) {
	var sent []row
	for i := range rows {
		if !l.goOn(soft, hard, r) {
			break
		}
		one := r.lease.begin(rows[i:i+1], l.cfg.SendTimeout)
		if len(one) == 0 {
			continue
		}
		began := time.Now()
		result, err := l.send(hard, r, one)
		switch result {
		case classSuccess:
			sent = append(sent, one[0])
		case classUnreachable, classCanceled:
			l.giveUp(hard, r, one, result, err)
		default:
			l.failed(hard, r, failure{row: one[0], began: began, err: err}, result)
		}
	}
	l.markSuccess(hard, r, sent)
}

// send hands rows, for which the lease has begun a send, to the sink, within SendTimeout and with a panic made an error.
func (l *loop) send(hard context.Context, r *round, rows []row) (result class, err error) {
	batch, began := records(rows), time.Now()
	ctx, cancel := context.WithTimeoutCause(hard, l.cfg.SendTimeout, Timeout(fmt.Errorf("send took longer than %v", l.cfg.SendTimeout)))
	err = callSink(ctx, l.sink, batch)
	cancel()
	r.lease.end()

	result = classify(err)
	if err != nil && hard.Err() != nil {
		result = classCanceled
	}
	now := time.Now()
	l.metrics.sendSeconds.Observe(now.Sub(began).Seconds())
	l.metrics.attempts(result).Add(float64(len(rows)))
	switch result {
	case classSuccess:
		l.lastSuccess = now
		l.reached(now)
	case classRefused, classError:
		l.reached(now)
	}
	l.cfg.Hooks.AfterSend()
	return result, err
}

func callSink(ctx context.Context, s Sink, batch []Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("sink panicked: %v", p)
		}
	}()
	return s.Send(ctx, batch)
}

// reached notes that the sink answers.
func (l *loop) reached(now time.Time) {
	l.silent = nil
	if l.breaker.success() {
		l.log.Info("sink is back")
		l.pace.start(now)
	}
}

// unreachable notes that the sink does not answer and ends the round.
func (l *loop) unreachable(r *round, err error) {
	if r.down {
		return
	}
	r.over, r.down = true, true
	l.batch = l.cfg.Batch
	if l.breaker.state(time.Now()) == breakerClosed {
		l.log.Warn("sink is unreachable", zap.Error(err))
	}
	l.breaker.failure(time.Now())
}

// giveUp ends the round after a send without an answer of the sink.
func (l *loop) giveUp(hard context.Context, r *round, rows []row, result class, err error) {
	if result == classCanceled {
		// The events may be on their way. Only the end of the lease is a safe moment to send them again.
		r.lease.forget(rows)
		r.over = true
		return
	}
	if r.probe || l.suspects.has(rows[0].id) {
		// The next probe takes another record, in case it is this one that the sink cannot bear.
		l.suspects.add(rows[0].id)
	}
	l.unreachable(r, err)
	l.putOff(hard, r, ids(rows), err)
}

// failed handles one row whose own send failed.
func (l *loop) failed(hard context.Context, r *round, f failure, result class) {
	switch result {
	case classTimeout:
		r.timedOut = append(r.timedOut, f)
		if l.noteSilence(f.row.id) {
			l.unreachable(r, f.err)
		}
	case classRefused:
		l.bury(hard, r, f.row, ReasonRefused, f.err)
	default:
		l.spendRetry(hard, r, f.row, f.err)
	}
}

// noteSilence remembers that id timed out, and reports whether enough have since the sink last answered.
func (l *loop) noteSilence(id int64) bool {
	if len(l.silent) < hopeless && !slices.Contains(l.silent, id) {
		l.silent = append(l.silent, id)
	}
	return len(l.silent) == hopeless
}

// judge decides for each timeout whether it was the event's fault, which spends a retry, or the sink's, which does
// not. It waits for the end of the round: another event's success after the timeout counts as well.
func (l *loop) judge(hard context.Context, r *round) {
	for _, f := range r.timedOut {
		if l.eventsFault(hard, r, f) {
			l.spendRetry(hard, r, f.row, f.err)
			continue
		}
		l.suspects.add(f.row.id)
		l.unreachable(r, f.err)
		l.putOff(hard, r, []int64{f.row.id}, f.err)
	}
}

func (l *loop) eventsFault(hard context.Context, r *round, f failure) bool {
	window := l.cfg.TimeoutWindow
	if r.probe {
		// What succeeded before the outage says nothing about it.
		window = 0
	}
	if l.lastSuccess.After(f.began.Add(-window)) {
		return true
	}
	// A connection probe is asked where nothing else can tell: no other record is due that could succeed, or too many
	// have been tried that did not. Else records that always time out would hold up everything behind them.
	stuck := r.alone || r.probe && len(l.silent) == hopeless
	prober, ok := l.sink.(Prober)
	if !stuck || !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(hard, l.cfg.SendTimeout)
	defer cancel()
	if err := prober.Probe(ctx); err != nil {
		return false
	}
	l.reached(time.Now())
	return true
}

// spendRetry puts a row back with a backoff, or ends it when no retry is left.
func (l *loop) spendRetry(hard context.Context, r *round, f row, cause error) {
	n := f.retries + 1
	if n > l.cfg.MaxRetries {
		l.bury(hard, r, f, ReasonRetries, cause)
		return
	}
	l.suspects.drop(f.id)
	after := backoff(n, l.cfg.BackoffBase, l.cfg.BackoffCap, l.cfg.Jitter, rand.Float64())
	at := time.Now().UTC()
	l.settle(hard, r, []int64{f.id}, transition{op: "retry", to: StatusWait, run: func(ctx context.Context, ids []int64) (int64, error) {
		return l.store.retry(ctx, r.lease.owner, ids[0], n, after, at, errorText("", cause))
	}})
}

// bury makes a row a dead letter.
func (l *loop) bury(hard context.Context, r *round, f row, reason string, cause error) {
	at := time.Now().UTC()
	ok := l.settle(hard, r, []int64{f.id}, transition{op: "fail", to: StatusFail, run: func(ctx context.Context, ids []int64) (int64, error) {
		return l.store.fail(ctx, r.lease.owner, ids[0], f.retries, at, errorText(reason, cause))
	}})
	if ok {
		l.metrics.dead(reason).Inc()
		l.log.Error("event is a dead letter", zap.String("msg_id", f.rec.MsgID), zap.String("event_type", f.rec.EventType),
			zap.String("biz_no", f.rec.BizNo), zap.String("reason", reason), zap.Error(cause))
	}
	if ok && l.order != nil && l.order.park {
		l.order.done([]row{f})
	}
	l.suspects.drop(f.id)
}

// putOff gives rows back whose sink is unreachable.
func (l *loop) putOff(hard context.Context, r *round, want []int64, cause error) {
	at := time.Now().UTC()
	l.settle(hard, r, want, transition{op: "put-off", to: StatusWait, run: func(ctx context.Context, ids []int64) (int64, error) {
		return l.store.putOff(ctx, r.lease.owner, ids, at, errorText("", cause))
	}})
}

func (l *loop) markSuccess(hard context.Context, r *round, rows []row) {
	if len(rows) == 0 {
		return
	}
	at := time.Now().UTC()
	ok := l.settle(hard, r, ids(rows), transition{op: "mark", to: StatusSuccess, run: func(ctx context.Context, ids []int64) (int64, error) {
		return l.store.success(ctx, r.lease.owner, ids, at)
	}})
	l.suspects.drop(ids(rows)...)
	if ok && l.order != nil {
		l.order.done(rows)
	}
	if ok {
		l.cfg.Hooks.AfterMark()
	}
}

// settle writes back and keeps the error for the end of the round.
func (l *loop) settle(hard context.Context, r *round, want []int64, t transition) bool {
	err := r.lease.settle(hard, want, t)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return err == nil
}

// failUnreadable makes dead letters of rows that cannot be sent as they stand, and returns the others.
func (l *loop) failUnreadable(hard context.Context, r *round, rows []row) []row {
	readable := make([]row, 0, len(rows))
	for _, row := range rows {
		if row.badErr != nil {
			l.bury(hard, r, row, ReasonBadHeaders, row.badErr)
			continue
		}
		readable = append(readable, row)
	}
	return readable
}
