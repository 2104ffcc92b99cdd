package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/eventview"
	"github.com/halfbox/halfbox/outbox"
)

// filterFlags choose records.
type filterFlags struct {
	filter outbox.Filter
	all    bool
}

func (f *filterFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.filter.Sink, "sink", "", "only this sink's")
	cmd.Flags().StringVar(&f.filter.EventType, "type", "", "only this event type, for example order.created")
	cmd.Flags().StringVar(&f.filter.BizNo, "biz-no", "", "only this business number, for example an order number")
	cmd.Flags().StringVar(&f.filter.Key, "key", "", "only this partition key")
	cmd.Flags().StringVar(&f.filter.Error, "error", "", "only with this text in their last error, in any case")
	cmd.Flags().DurationVar(&f.filter.OlderThan, "older-than", 0, "only those made longer ago, for example 24h")
	cmd.Flags().DurationVar(&f.filter.NewerThan, "newer-than", 0, "only those made since, for example 15m")
}

func (f *filterFlags) validate() error {
	if f.filter.OlderThan < 0 || f.filter.NewerThan < 0 {
		return errors.New("--older-than and --newer-than: write a positive duration such as 15m or 24h")
	}
	return nil
}

// operationFlags are those of redrive and purge.
type operationFlags struct {
	filterFlags
	op  outbox.Operation
	out output
}

func (f *operationFlags) flags(cmd *cobra.Command, verb string) {
	f.filterFlags.flags(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "every dead letter; instead of a MSG_ID or a filter")
	cmd.Flags().IntVar(&f.op.Limit, "limit", 0, "at most so many; 0 is no limit")
	cmd.Flags().Float64Var(&f.op.Rate, "rate", 0, "at most so many in a second; 0 is no limit")
	cmd.Flags().BoolVar(&f.op.DryRun, "dry-run", false, "only show what would be "+verb)
	cmd.Flags().StringVar(&f.op.Reason, "reason", "", "why; required, kept in t_audit_log")
	cmd.Flags().StringVar(&f.op.Actor, "actor", "", "who asks for it, kept in t_audit_log (default: the user and host of this process)")
	f.out.flag(cmd)
}

// operation is what the command line asks for.
func (f *operationFlags) operation(args []string) (outbox.Operation, error) {
	if err := errors.Join(f.out.validate(), f.validate()); err != nil {
		return outbox.Operation{}, err
	}
	op := f.op
	op.Filter = f.filter
	if len(args) == 1 {
		op.Filter.MsgID = args[0]
	}
	switch {
	case op.Filter == outbox.Filter{} && !f.all:
		return op, errors.New("which dead letters? name a MSG_ID, a filter such as --sink or --error, or --all")
	case op.Filter != outbox.Filter{} && f.all:
		return op, errors.New("--all and a MSG_ID or filter contradict each other: leave one out")
	case op.Limit < 0:
		return op, fmt.Errorf("--limit %d: write a positive number, or 0 for no limit", op.Limit)
	case op.Rate < 0 || op.Rate > 0 && op.Rate < 0.01:
		return op, fmt.Errorf("--rate %v: write a number from 0.01, or 0 for no limit", op.Rate)
	case op.Reason == "" && !op.DryRun:
		return op, errors.New("--reason is required: it is kept in t_audit_log")
	}
	if op.Actor == "" {
		op.Actor = processOwner()
	}
	return op, nil
}

// processOwner names who runs this process.
func processOwner() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

func newOutboxRedrive(o *options) *cobra.Command {
	var f operationFlags
	cmd := &cobra.Command{
		Use:   "redrive [MSG_ID]",
		Short: "Send dead letters again",
		Long: `Put dead letters back to WAIT: a relay sends them again under their own msg_id, with all retries before them.

One by its MSG_ID (with --sink, if it has records for several), many by a filter, all by --all. Each batch of up to 100
is one transaction that also writes who, what, when and why to t_audit_log. It may be run while relays work, and
twice at once. Ctrl-C ends it after the batch in progress; run it again to go on.

--rate protects what is behind the sink: relays send as fast as they can.`,
		Example: `  halfbox outbox redrive 01a2290e-cc79-7ec1-8d5d-201f5e8ddc78 --reason "topic was made"
  halfbox outbox redrive --error "no route" --older-than 1h --dry-run
  halfbox outbox redrive --sink rocketmq --limit 1000 --rate 50 --reason "broker was full"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			op, err := f.operation(args)
			if err != nil {
				return err
			}
			return operate(cmd, o, f.out, op, outbox.Redrive, "redriven")
		},
	}
	f.flags(cmd, "redriven")
	return cmd
}

func newOutboxPurge(o *options) *cobra.Command {
	var f operationFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "purge [MSG_ID]",
		Short: "Delete dead letters for good",
		Long: `Delete dead letters. Nothing else ever deletes one. What is deleted is not delivered any more; t_audit_log keeps its
msg_id, type, business number and last error, not its payload. The same fact may be written again afterwards.

Records that were sent are deleted by the relay after outbox.retention, not by this command.`,
		Example: `  halfbox outbox purge --type order.test --dry-run
  halfbox outbox purge --type order.test --reason "test data" --yes`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			op, err := f.operation(args)
			if err != nil {
				return err
			}
			if !yes && !op.DryRun {
				return errors.New("what is purged is gone: look with --dry-run, then confirm with --yes")
			}
			return operate(cmd, o, f.out, op, outbox.PurgeDead, "purged")
		},
	}
	f.flags(cmd, "purged")
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm")
	return cmd
}

type operationFunc func(context.Context, *database.DB, outbox.Operation) (outbox.OperationResult, error)

// operate runs an operation and prints what was done, also when it was interrupted.
func operate(cmd *cobra.Command, o *options, out output, op outbox.Operation, do operationFunc, verb string) error {
	op.Progress = progress(cmd.ErrOrStderr(), verb, op.DryRun)
	return withOutboxFor(cmd.Context(), o, 0, func(ctx context.Context, db *database.DB) error {
		res, err := do(ctx, db, op)
		view := eventview.OfOperation(res, op.DryRun)
		if printed := out.print(cmd.OutOrStdout(), view, func() [][]string { return operationTable(view, verb) }); printed != nil {
			return errors.Join(err, printed)
		}
		switch {
		case errors.Is(err, context.Canceled):
			return fmt.Errorf("interrupted, %d are %s: run it again for the others", res.Changed, verb)
		case err != nil:
			return err
		case res.Matched == 0 && op.Filter.MsgID != "":
			return notDead(ctx, db, op.Filter)
		}
		return nil
	})
}

// notDead says why a message that was named is not there to be changed.
func notDead(ctx context.Context, db *database.DB, f outbox.Filter) error {
	entries, err := outbox.Get(ctx, db, f.MsgID)
	if errors.Is(err, outbox.ErrNotFound) {
		return fmt.Errorf("no event record has msg_id %s", f.MsgID)
	}
	if err != nil {
		return err
	}
	text := fmt.Sprintf("message %s is not such a dead letter:", f.MsgID)
	for _, e := range entries {
		text += fmt.Sprintf(" it is %s for sink %s;", e.Status, e.Sink)
	}
	return errors.New(text[:len(text)-1])
}

// progressInterval is how often progress is told.
const progressInterval = 2 * time.Second

// progress tells now and then how far an operation is.
func progress(w io.Writer, verb string, dryRun bool) func(outbox.OperationResult) {
	last := time.Now()
	return func(r outbox.OperationResult) {
		if time.Since(last) < progressInterval {
			return
		}
		last = time.Now()
		if dryRun {
			fmt.Fprintf(w, "%d found so far\n", r.Matched)
			return
		}
		fmt.Fprintf(w, "%d %s so far\n", r.Changed, verb)
	}
}

func operationTable(v eventview.Operation, verb string) (rows [][]string) {
	if v.DryRun {
		rows = append(rows, []string{"MSG ID", "SINK", "TYPE", "BIZ NO", "LAST ERROR"})
		for _, e := range v.Events {
			rows = append(rows, []string{e.MsgID, e.Sink, e.Type, e.BizNo, shortened(e.LastError)})
		}
		if len(v.Events) < v.Matched {
			rows = append(rows, []string{fmt.Sprintf("... and %d more", v.Matched-len(v.Events))})
		}
		rows = append(rows, []string{fmt.Sprintf("%d would be %s", v.Matched, verb)})
	} else {
		rows = append(rows, []string{fmt.Sprintf("%d of %d dead letters %s", v.Changed, v.Matched, verb)})
		if v.RunID != "" {
			rows = append(rows, []string{"run_id in t_audit_log: " + v.RunID})
		}
	}
	if v.More {
		rows = append(rows, []string{"the limit was reached, there may be more"})
	}
	return rows
}
