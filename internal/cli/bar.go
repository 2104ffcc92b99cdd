package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
)

// bar shows how far a long command is: a bar on a terminal, else a line for each step.
type bar struct {
	w    io.Writer
	line *progressbar.ProgressBar
	last string
}

func newBar(w io.Writer) *bar {
	p := &bar{w: w}
	if f, ok := w.(*os.File); ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd())) {
		p.line = progressbar.NewOptions(1,
			progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(true), progressbar.OptionSpinnerCustom([]string{" "}))
	}
	return p
}

// tell says that done of total steps are done, and what comes next. Its errors are those of a terminal that is gone.
func (p *bar) tell(done, total int, next string) {
	switch {
	case p.line != nil:
		p.line.ChangeMax(max(total, 1))
		if next != "" {
			p.line.Describe(next)
		}
		_ = p.line.Set(min(done, total-1)) // the last step is the report's
	case next != "" && next != p.last:
		p.last = next
		fmt.Fprintf(p.w, "[%d/%d] %s\n", done, total, next)
	}
}

func (p *bar) end() {
	if p.line != nil {
		_ = p.line.Finish()
	}
}
