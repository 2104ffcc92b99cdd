package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/eventview"
	"github.com/halfbox/halfbox/outbox"
)

// statementTimeout bounds what a command asks the database.
const statementTimeout = 30 * time.Second

func newOutbox(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Look at the outbox, t_event_record, and put its dead letters right",
		Long: `Look at the event records of the order database, send dead letters again, delete them. All of it may be done while
the service runs.

A record is WAIT (due at its next retry time), SENDING (claimed under a lease), SUCCESS or FAIL (a dead letter).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newOutboxStats(o), newOutboxList(o), newOutboxShow(o), newOutboxBlocked(o), newOutboxRedrive(o), newOutboxPurge(o))
	return cmd
}

// withOutbox opens the order database for one command that asks a question.
func withOutbox(ctx context.Context, o *options, do func(ctx context.Context, db *database.DB) error) error {
	return withOutboxFor(ctx, o, statementTimeout, do)
}

// withOutboxFor is withOutbox for a command that may take as long as timeout, or as it needs if that is 0.
func withOutboxFor(ctx context.Context, o *options, timeout time.Duration, do func(ctx context.Context, db *database.DB) error) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	db, err := app.OrderDatabase().Look(cfg)
	if err != nil {
		return err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	if err := errors.Join(do(ctx, db), db.Close()); err != nil {
		return &runError{err}
	}
	return nil
}

func newOutboxStats(o *options) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count the records by sink and state",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			return withOutbox(cmd.Context(), o, func(ctx context.Context, db *database.DB) error {
				snapshot, err := outbox.Stats(ctx, db)
				if err != nil {
					return err
				}
				stats := eventview.OfStats(snapshot)
				return out.print(cmd.OutOrStdout(), stats, func() [][]string { return statsTable(stats) })
			})
		},
	}
	out.flag(cmd)
	return cmd
}

func statsTable(stats eventview.Stats) [][]string {
	rows := [][]string{{"SINK", "WAIT", "SENDING", "SUCCESS", "FAIL", "OLDEST UNSENT"}}
	for _, s := range stats.Sinks {
		oldest := "-"
		if s.Wait+s.Sending > 0 {
			oldest = time.Duration(s.OldestUnsentSeconds * float64(time.Second)).Round(time.Millisecond).String()
		}
		rows = append(rows, []string{s.Sink, number(s.Wait), number(s.Sending), number(s.Success), number(s.Fail), oldest})
	}
	if stats.Overdue > 0 {
		rows = append(rows, []string{fmt.Sprintf("%d in SENDING are past their lease: is a relay running?", stats.Overdue)})
	}
	return rows
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func newOutboxList(o *options) *cobra.Command {
	var out output
	var flags filterFlags
	var status string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List records",
		Long: `List records, in the order in which they are or were due within a state and sink.

--status, --sink, --biz-no, --msg-id and --key are looked up by an index. The other filters are compared record by
record, at most 10,000 in one call: when there are more to look at, the list may be short, and the last line (in JSON:
next) says how to go on.`,
		Example: `  halfbox outbox list --status FAIL
  halfbox outbox list --status FAIL --error "no route" --older-than 1h
  halfbox outbox list --biz-no 06H2J3PCF5YN72G10ZYXEPGQM0 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := flags.filter
			f.Status = outbox.Status(status)
			if f.Status != "" && !slices.Contains(outbox.Statuses(), f.Status) {
				return fmt.Errorf("--status %q: write one of %v", status, outbox.Statuses())
			}
			if f.Limit < 1 || f.Limit > 1000 {
				return fmt.Errorf("--limit %d: write a number from 1 to 1000", f.Limit)
			}
			if err := errors.Join(out.validate(), flags.validate()); err != nil {
				return err
			}
			return withOutbox(cmd.Context(), o, func(ctx context.Context, db *database.DB) error {
				page, err := outbox.Search(ctx, db, f)
				if errors.Is(err, outbox.ErrBadCursor) {
					return errors.New("--after: write what the list before has said, with the same filters")
				}
				if err != nil {
					return err
				}
				return out.print(cmd.OutOrStdout(), eventview.OfPage(page), func() [][]string { return listTable(page) })
			})
		},
	}
	cmd.Flags().StringVar(&status, "status", "", fmt.Sprintf("only these: %v", outbox.Statuses()))
	flags.flags(cmd)
	cmd.Flags().StringVar(&flags.filter.MsgID, "msg-id", "", "only this message")
	cmd.Flags().IntVar(&flags.filter.Limit, "limit", 100, "at most so many, up to 1000")
	cmd.Flags().StringVar(&flags.filter.After, "after", "", "go on where the list before has ended")
	out.flag(cmd)
	return cmd
}

func listTable(page outbox.Page) [][]string {
	rows := [][]string{{"MSG ID", "SINK", "TYPE", "BIZ NO", "STATUS", "RETRIES", "NEXT RETRY (UTC)", "LAST ERROR"}}
	for _, e := range page.Entries {
		next := "-"
		if e.Status == outbox.StatusWait {
			next = e.NextRetryTime.Format("2006-01-02 15:04:05.000")
		}
		rows = append(rows, []string{e.MsgID, e.Sink, e.EventType, e.BizNo, string(e.Status), strconv.Itoa(e.RetryCount), next, shortened(e.LastError)})
	}
	if page.Next != "" {
		rows = append(rows, []string{"there may be more: --after " + page.Next})
	}
	return rows
}

func newOutboxShow(o *options) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "show MSG_ID",
		Short: "Show one message whole, its payload included",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			return withOutbox(cmd.Context(), o, func(ctx context.Context, db *database.DB) error {
				entries, err := outbox.Get(ctx, db, args[0])
				if errors.Is(err, outbox.ErrNotFound) {
					return fmt.Errorf("no event record has msg_id %s; an order delivered by txmsg has none", args[0])
				}
				if err != nil {
					return err
				}
				views := eventview.All(entries)
				return out.print(cmd.OutOrStdout(), views, func() [][]string { return showTable(views) })
			})
		},
	}
	out.flag(cmd)
	return cmd
}

// showTable prints a record field by field, by the names that JSON has.
func showTable(views []eventview.Event) (rows [][]string) {
	for _, v := range views {
		fields := reflect.ValueOf(v)
		for i := range fields.NumField() {
			name, _, _ := strings.Cut(fields.Type().Field(i).Tag.Get("json"), ",")
			if field := fields.Field(i); !field.IsZero() {
				rows = append(rows, []string{name, fieldText(field.Interface())})
			}
		}
	}
	return rows
}

func fieldText(value any) string {
	switch v := value.(type) {
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case *time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case json.RawMessage:
		return string(v)
	}
	return fmt.Sprint(value)
}
