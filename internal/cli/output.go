package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// output is how a command prints its result: a table to read, or JSON for programs.
type output struct{ format string }

func (o *output) flag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "table | json")
}

func (o *output) validate() error {
	if o.format != "table" && o.format != "json" {
		return fmt.Errorf("--output %q: write table or json", o.format)
	}
	return nil
}

// print writes value as JSON, or the table that rows makes.
func (o *output) print(w io.Writer, value any, rows func() [][]string) error {
	if o.format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows() {
		if _, err := fmt.Fprintln(tw, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return tw.Flush()
}
