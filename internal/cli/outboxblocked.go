package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/eventview"
	"github.com/halfbox/halfbox/outbox"
)

func newOutboxBlocked(o *options) *cobra.Command {
	var out output
	var sink, after string
	var limit int
	cmd := &cobra.Command{
		Use:   "blocked",
		Short: "List the keys of an ordered sink that have a dead letter",
		Long: `List the keys of an ordered sink that have a dead letter, and how many records wait behind it.

With outbox.head_of_line block, such a key is sent nothing until its dead letter is redriven. With park it goes on, and
the order of its events is not promised for the dead letter. The sink is the configured one unless --sink names another.`,
		Example: `  halfbox outbox blocked
  halfbox outbox blocked --after 06H2J3PCF5YN72G10ZYXEPGQM0 --limit 1000 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return fmt.Errorf("--limit %d: write a number from 1 to 1000", limit)
			}
			if err := out.validate(); err != nil {
				return err
			}
			if sink == "" {
				cfg, err := o.load()
				if err != nil {
					return err
				}
				sink = cfg.Outbox.Sink
			}
			return withOutbox(cmd.Context(), o, func(ctx context.Context, db *database.DB) error {
				keys, err := outbox.BlockedKeys(ctx, db, sink, after, limit)
				if err != nil {
					return err
				}
				views := eventview.AllBlocked(keys)
				return out.print(cmd.OutOrStdout(), views, func() [][]string { return blockedTable(views) })
			})
		},
	}
	cmd.Flags().StringVar(&sink, "sink", "", "the sink, if not outbox.sink")
	cmd.Flags().StringVar(&after, "after", "", "only keys after this one, to go on where a list ended")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many, up to 1000")
	out.flag(cmd)
	return cmd
}

func blockedTable(views []eventview.BlockedKey) [][]string {
	rows := [][]string{{"KEY", "DEAD VERSION", "MSG ID", "TYPE", "DEAD LETTERS", "WAITING", "LAST ERROR"}}
	for _, v := range views {
		rows = append(rows, []string{
			v.Key, number(v.Version), v.MsgID, v.EventType, number(v.DeadLetters), strconv.Itoa(v.Waiting), shortened(v.LastError),
		})
	}
	return rows
}

// shortened cuts a text to what fits into a table.
func shortened(s string) string {
	text := []rune(s)
	if len(text) > 60 {
		text = append(text[:59], '…')
	}
	return string(text)
}
