package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

const (
	// sqlLockDead reads dead letters, locked until the transaction ends (on SQLite there is one writer).
	sqlLockDead = `SELECT id, msg_id, sink, event_type, biz_no, last_error FROM t_event_record {by id}
 WHERE id IN ? AND status = 'FAIL' ORDER BY id{for update}`

	// sqlRedrive: FAIL -> WAIT, due at once, as if it had never been sent. last_error stays until the next error.
	sqlRedrive = `UPDATE t_event_record {by id} SET status = 'WAIT', claim_owner = NULL, claimed_at = NULL, lease_until = NULL,
 retry_count = 0, reclaim_count = 0, next_retry_time = {now}, first_error_at = NULL
 WHERE id IN ? AND status = 'FAIL'`

	// sqlPurgeDead: FAIL -> gone.
	sqlPurgeDead = `{delete by id} WHERE id IN ? AND status = 'FAIL'`
)

const (
	// operationBatch is how many records one transaction of an operation changes at most.
	operationBatch = 100
	// operationTimeout bounds one such transaction. It does not end with the caller's context, so that a command that
	// is interrupted leaves no transaction of unknown outcome.
	operationTimeout = 15 * time.Second
)

// ErrBadOperation means that an Operation cannot be carried out as it stands.
var ErrBadOperation = errors.New("outbox: invalid operation")

// Operation is what an operator wants done to dead letters.
type Operation struct {
	// Filter selects the records. Its Status is FAIL whatever it says, its Limit and After are not used.
	Filter Filter
	// Limit is the largest number of records that are changed; 0 is no limit.
	Limit int
	// Rate is the largest number of records per second; 0 is no limit. A relay sends what is redriven as fast as it can.
	Rate float64
	// DryRun only counts what would be changed.
	DryRun bool
	// Actor is who asks for it and Reason why, both required: they are kept in t_audit_log.
	Actor, Reason string
	// Progress is called after every batch, by the calling goroutine. Optional.
	Progress func(OperationResult)
}

// OperationResult is what has been done so far.
type OperationResult struct {
	// RunID marks the rows of t_audit_log.
	RunID string
	// Matched is the number of dead letters that the filter selects, up to the limit.
	Matched int
	// Changed is the number of them that were changed; the others were changed by somebody else meanwhile.
	Changed int
	// Sample are the first hundred that matched.
	Sample []Entry
	// More is true when the limit was reached: there may be others.
	More bool
}

const sampleSize = 100

func (o Operation) validate() error {
	if err := checkAuditText("actor", o.Actor, maxActor); err != nil && !o.DryRun {
		return err
	}
	if err := checkAuditText("reason", o.Reason, maxReason); err != nil && !o.DryRun {
		return err
	}
	if o.Limit < 0 || o.Rate < 0 || o.Rate > 0 && o.Rate < 0.01 {
		return fmt.Errorf("%w: limit must not be negative, and rate 0 or at least 0.01", ErrBadOperation)
	}
	return nil
}

// Redrive puts dead letters back to WAIT: they are sent again under their own msg_id, with their retries and reclaims
// before them once more. Each batch of up to 100 is one transaction, in which t_audit_log gets a row for each record.
//
// It may run beside relays and other operations: a record is changed by one of them only. A record that dies again
// meanwhile is not redriven twice by one call. When ctx ends, the batch in progress is finished, and the result
// says what was done, together with ctx's error. After halfbox.ErrUnknown the last batch may or may not have been
// changed; the call may be repeated.
func Redrive(ctx context.Context, db *database.DB, o Operation) (OperationResult, error) {
	return newStore(db).operate(ctx, ActionRedrive, sqlRedrive, o)
}

// PurgeDead deletes dead letters for good; t_audit_log keeps what they were, without their payload. Everything else
// is as with Redrive. The fact of a deleted record (its event type and business number) may be written again.
func PurgeDead(ctx context.Context, db *database.DB, o Operation) (OperationResult, error) {
	return newStore(db).operate(ctx, ActionPurge, sqlPurgeDead, o)
}

func (s store) operate(ctx context.Context, action Action, change string, o Operation) (OperationResult, error) {
	if err := o.validate(); err != nil {
		return OperationResult{}, err
	}
	run, err := uuid.NewV7()
	if err != nil {
		return OperationResult{}, fmt.Errorf("outbox %s: make a run id: %w", action, err)
	}
	op := operation{Operation: o, store: s, action: action, change: change, done: map[int64]bool{}, result: OperationResult{RunID: run.String()}}
	op.Filter.Status, op.Filter.Limit, op.Filter.After = StatusFail, scanBatch, ""
	if err := op.run(ctx); err != nil {
		return op.result, fmt.Errorf("outbox %s: %w", action, err)
	}
	return op.result, nil
}

// operation is one call of Redrive or PurgeDead.
type operation struct {
	Operation
	store  store
	action Action
	change string
	result OperationResult
	// done are the records of earlier batches: one that dies again comes up once more, further on in the index.
	done map[int64]bool
	next time.Time // when the rate allows the next batch
}

func (op *operation) run(ctx context.Context) error {
	for {
		page, err := op.store.search(ctx, op.Filter)
		if err != nil {
			return err
		}
		var fresh []Entry
		for _, e := range page.Entries {
			if !op.done[e.ID] {
				fresh = append(fresh, e)
			}
		}
		for len(fresh) > 0 {
			n := op.batch(len(fresh))
			if n == 0 {
				op.result.More = true
				return nil
			}
			if err := op.take(ctx, fresh[:n]); err != nil {
				return err
			}
			fresh = fresh[n:]
		}
		if page.Next == "" {
			return nil
		}
		op.Filter.After = page.Next
	}
}

// batch is how many of n records to take next; 0 when the limit is reached.
func (op *operation) batch(n int) int {
	n = min(n, operationBatch)
	if op.Rate > 0 { // no burst longer than a second
		n = min(n, max(1, int(op.Rate)))
	}
	if op.Limit > 0 {
		n = min(n, op.Limit-op.result.Matched)
	}
	return n
}

// take waits until the rate allows it, and changes the records that are still dead letters.
func (op *operation) take(ctx context.Context, entries []Entry) error {
	if ctx.Err() != nil || !sleep(ctx, time.Until(op.next)) {
		return context.Cause(ctx)
	}
	if op.Rate > 0 && !op.DryRun {
		op.next = time.Now().Add(time.Duration(float64(len(entries)) / op.Rate * float64(time.Second)))
	}
	var wanted []int64
	for _, e := range entries {
		wanted = append(wanted, e.ID)
		op.done[e.ID] = true
	}
	if !op.DryRun {
		n, err := op.changeAll(ctx, sorted(wanted))
		if err != nil {
			return err
		}
		op.result.Changed += n
	}
	op.result.Matched += len(entries)
	op.result.Sample = append(op.result.Sample, entries[:min(len(entries), sampleSize-len(op.result.Sample))]...)
	if op.Progress != nil {
		op.Progress(op.result)
	}
	return nil
}

// changeAll is one transaction: lock what is still a dead letter, change exactly that, and write down who and why.
func (op *operation) changeAll(ctx context.Context, ids []int64) (changed int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	err = op.store.db.InTx(ctx, func(tx *gorm.DB) error {
		changed = 0 // of the run before, which a lock conflict has undone
		dead, err := op.store.lockDead(tx, ids)
		if err != nil || len(dead) == 0 {
			return err
		}
		var locked []int64
		var audits []Audit
		for _, d := range dead {
			locked = append(locked, d.id)
			audits = append(audits, Audit{
				RunID: op.result.RunID, Action: op.action, Actor: op.Actor, Reason: op.Reason, MsgID: d.MsgID, Sink: d.sink,
				EventType: d.EventType, BizNo: d.BizNo, Detail: d.lastError, CreatedAt: time.Now().UTC(),
			})
		}
		n, err := affected(tx.Exec(op.store.dialect.Replace(op.change), locked))
		if err != nil {
			return err
		}
		if n != int64(len(locked)) { // they are locked, so this cannot be
			return fmt.Errorf("%d of %d locked records changed", n, len(locked))
		}
		changed = int(n)
		return insertAudits(tx, audits)
	})
	if errors.Is(err, halfbox.ErrUnknown) {
		return 0, fmt.Errorf("the outcome of the last batch is unknown, the same call may be repeated: %w", err)
	}
	return changed, err
}

// deadRow is a dead letter as it is locked.
type deadRow struct {
	Record
	id        int64
	sink      string
	lastError string
}

func (s store) lockDead(tx *gorm.DB, ids []int64) ([]deadRow, error) {
	return collect(tx.Raw(s.dialect.Replace(sqlLockDead), ids), func(rs *sql.Rows) (d deadRow, err error) {
		var lastError sql.NullString
		err = rs.Scan(&d.id, &d.MsgID, &d.sink, &d.EventType, &d.BizNo, &lastError)
		d.lastError = lastError.String
		return d, err
	})
}
