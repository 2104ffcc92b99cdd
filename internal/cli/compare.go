package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app/rig"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

type compareFlags struct {
	strategies, faults, engines, dir string
	run                              compare.Config
	out                              output
}

func newCompare(o *options) *cobra.Command {
	var f compareFlags
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Measure the strategies side by side, also while things go wrong",
		Long: `Send the same orders through each strategy, on the same engines, and through naive (send after commit, the habit
that this project replaces) as the control that shows what loss looks like. The databases judge what came of it.

Without a fault the strategies take turns, round by round, so that a busy machine hurts all alike; a winner is named
only where the difference exceeds the spread of the rounds. Under a fault all of them run at the same time, at a
moderate rate. The service is a process of its own, called through its HTTP API; points are earned by the real consumer.

  --engines embedded   SQLite and the in-process broker (default)
  --engines real       MySQL and RocketMQ: those of scripts/engines when its variables are set, else configs/real.yaml,
                       both with HALFBOX_... overrides
  --engines FILE       the engines that a configuration file names

Schemas, topics and groups are made for the run and removed after it, also after Ctrl-C; their names begin with
` + rig.Prefix + `. What a run leaves that is killed itself, the next one on this machine and the same engines
removes. What the configuration names is never touched.

Results: a table here, and in --out report.html (one file, opens without a network), report.json (raw samples) and
report.md. Ctrl-C keeps what was measured and marks it as partial; what cannot be judged any more is n/a. A second one
ends at once and removes nothing. A report of before is replaced only when something was measured.

Exit codes: 0 done, 1 something failed or the run was interrupted (the report says what there is), 2 usage or
configuration. Loss under a strategy is a result, not a failure.`,
		Example: `  halfbox compare
  halfbox compare --faults none,kill --orders 100 --rounds 3
  halfbox compare --strategies txmsg,outbox --faults none --rate 200 --orders 2000
  eval "$(scripts/engines up)"; halfbox compare --engines real`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runCompare(cmd.Context(), o, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.strategies, "strategies", "txmsg,outbox,naive", "which, comma-separated: "+strategyNames()+"; outbox is both claim ways")
	flags.StringVar(&f.faults, "faults", "all", fmt.Sprintf("which, comma-separated: %v; what the engines cannot have prints n/a with the reason", compare.Faults()))
	flags.StringVar(&f.engines, "engines", "embedded", "embedded | real | a configuration file")
	flags.IntVar(&f.run.Orders, "orders", 300, "orders of one strategy in one round")
	flags.IntVar(&f.run.Rounds, "rounds", 5, "rounds without faults; below 5 no winner is named")
	flags.IntVar(&f.run.Warmup, "warmup", 100, "orders before the first round, not measured")
	flags.Float64Var(&f.run.Rate, "rate", 0, "open loop: orders per second, at random moments (default: closed loop)")
	flags.IntVar(&f.run.Concurrency, "concurrency", 16, "closed loop: callers that wait for their answer")
	flags.Float64Var(&f.run.FaultRate, "fault-rate", 0, "orders per second and strategy under a fault (default: half of what was reached without, at most 100)")
	flags.Uint64Var(&f.run.Seed, "seed", 1, "plans the orders and the turns; the same seed plans the same")
	flags.StringVar(&f.dir, "out", "compare-report", "folder for the reports")
	cmd.MarkFlagsMutuallyExclusive("rate", "concurrency")
	f.out.flag(cmd)
	cmd.AddCommand(newCompareService(o))
	return cmd
}

func strategyNames() string {
	var names []string
	for _, s := range compare.Strategies() {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

// newCompareService is the child that a comparison starts: the service with one strategy. Its configuration comes by
// standard input.
func newCompareService(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "service STRATEGY RECORDS", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, err := compare.Choose(compare.Strategies(), args[0])
			if err != nil {
				return err
			}
			return serveCompared(chosen[0], args[1], cmd.InOrStdin(), o.env)
		},
	}
}

func serveCompared(s compare.Strategy, records string, in io.Reader, env Env) error {
	log, err := newLogger(configs.Log{Level: "warn", Format: "console"}, env.Stderr)
	if err != nil {
		return err
	}
	httpapi.ReleaseMode()
	if err := rocketmq.Configure(log.Named("rocketmq")); err != nil {
		return err
	}
	if err := rig.Serve(s, records, in, env.Stdout, log); err != nil {
		return &runError{err}
	}
	return nil
}

func runCompare(ctx context.Context, o *options, f compareFlags) (err error) {
	run, err := f.prepare(o)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", rig.FolderPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	engines, err := f.openEngines(o, work)
	if err != nil {
		return err
	}
	run.Engines = engines
	// Before minutes of measuring, not after.
	if err := compare.CheckDir(f.dir); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	if err := engines.Claim(); err != nil {
		return err
	}
	// A leftover that cannot be removed does not keep this run from measuring.
	if dead, err := engines.SweepDead(ctx, os.TempDir()); len(dead) > 0 || err != nil {
		for _, name := range dead {
			fmt.Fprintf(o.env.Stderr, "removed what %s left when it was killed\n", name)
		}
		if err != nil {
			fmt.Fprintf(o.env.Stderr, "halfbox: %v\n", err)
		}
	}
	bar := newBar(o.env.Stderr)
	run.Progress = bar.tell
	report, err := compare.Run(ctx, run)
	bar.end()
	if report == nil {
		return err
	}
	err = errors.Join(err, engines.Sweep(ctx))
	if report.Partial != "" && report.Empty() {
		return &runError{fmt.Errorf("the comparison ended before anything was measured, no report is written: %w", err)}
	}
	paths, writeErr := report.WriteFiles(f.dir)
	printErr := f.print(o.env.Stdout, report, paths)
	if report.Partial != "" {
		err = fmt.Errorf("the comparison did not come to its end, its report holds what was measured before: %w", err)
	}
	if err = errors.Join(err, writeErr, printErr); err != nil {
		return &runError{err}
	}
	return nil
}

// prepare turns flags into a run, without its engines.
func (f compareFlags) prepare(o *options) (run compare.Config, err error) {
	if err := f.out.validate(); err != nil {
		return run, err
	}
	run = f.run
	if run.Strategies, err = compare.Choose(compare.Strategies(), f.strategies); err != nil {
		return run, err
	}
	if run.Faults, err = compare.ParseFaults(f.faults); err != nil {
		return run, err
	}
	if run.Rate > 0 {
		run.Concurrency = 0
	}
	run.Command, run.Version = f.commandLine(), version()
	return run, run.Validate()
}

// commandLine is the command that measures the same again.
func (f compareFlags) commandLine() string {
	line := fmt.Sprintf("halfbox compare --strategies %s --faults %s --engines %s --orders %d --rounds %d --warmup %d --seed %d",
		f.strategies, f.faults, f.engines, f.run.Orders, f.run.Rounds, f.run.Warmup, f.run.Seed)
	if f.run.Rate > 0 {
		line += fmt.Sprintf(" --rate %g", f.run.Rate)
	} else {
		line += fmt.Sprintf(" --concurrency %d", f.run.Concurrency)
	}
	if f.run.FaultRate > 0 {
		line += fmt.Sprintf(" --fault-rate %g", f.run.FaultRate)
	}
	return line
}

func (f compareFlags) openEngines(o *options, work string) (*rig.Engines, error) {
	cfg, err := f.loadEngines(o)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return rig.New(rig.Options{Config: cfg, Command: []string{self, "compare", "service"}, Dir: work, Name: f.engines}), nil
}

// print writes the result to standard output.
func (f compareFlags) print(w io.Writer, r *compare.Report, paths []string) error {
	if f.out.format == "json" {
		return f.out.print(w, r.WithoutSamples(), nil)
	}
	for _, rows := range [][][]string{r.PerformanceTable(), r.FaultTable()} {
		if rows == nil {
			continue
		}
		if err := f.out.print(w, nil, func() [][]string { return rows }); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	for _, line := range r.Highlights() {
		fmt.Fprintln(w, line)
	}
	if len(r.Metrics) > 0 {
		fmt.Fprintln(w, "* wins: the difference exceeds the spread of the rounds.")
	}
	for _, p := range paths {
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		fmt.Fprintln(w, "report:", p)
	}
	return nil
}
