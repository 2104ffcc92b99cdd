package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/halfbox/halfbox/configs"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitInterrupted is what shells expect of a program that a signal has ended.
	exitInterrupted = 130
)

// Env is what a command sees of the process it runs in.
type Env struct {
	Stdout, Stderr io.Writer
	Environ        []string
}

// Run runs the command line and returns the exit code.
//
// The first SIGINT or SIGTERM ends the command in an orderly way; the second ends the process at once.
func Run(args []string, env Env) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer onSignals(cancel, func() { os.Exit(exitInterrupted) })()

	root := newRoot(env)
	root.SetArgs(args)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(env.Stderr, "halfbox: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nhalfbox: "))
	var failed *runError
	if errors.As(err, &failed) {
		return exitFailed
	}
	// What cobra itself refuses, a configuration, and a setup that cannot work.
	return exitUsage
}

// onSignals calls first and then second when SIGINT or SIGTERM comes once and twice. Giving the signals their default
// effect back after the first would not do: a process started in the background inherits SIGINT ignored. The function
// that it returns ends it.
func onSignals(first, second func()) (stop func()) {
	signals, done := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for _, act := range []func(){first, second} {
			select {
			case <-signals:
				act()
			case <-done:
				return
			}
		}
	})
	return func() {
		signal.Stop(signals)
		close(done)
		watcher.Wait()
	}
}

// runError is a failure that is not the user's: the command was right and did not succeed.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// options are the flags that every command has.
type options struct {
	env    Env
	config string
	data   string
}

// load reads the configuration; flags of the command line win over everything.
func (o *options) load() (configs.Config, error) {
	cfg, err := configs.Load(o.config, o.env.Environ)
	if err != nil {
		return configs.Config{}, err
	}
	if o.data != "" {
		cfg.Data = o.data
	}
	return cfg, nil
}

func (o *options) getenv(name string) string {
	for _, kv := range o.env.Environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

func newRoot(env Env) *cobra.Command {
	o := &options{env: env}
	root := &cobra.Command{
		Use:   "halfbox",
		Short: "Events exactly when a transaction commits: RocketMQ transactional messages and an outbox behind one call",
		Long: `halfbox publishes the events of a local database transaction if and only if it commits, by RocketMQ
transactional messages or by an outbox table, and makes the consumer's effect happen once.

It starts with nothing installed: SQLite files and an in-process broker under ./data. With a configuration file
it runs on MySQL and a RocketMQ cluster.

  halfbox serve                        start everything in one process
  halfbox serve --config real.yaml     the same on the engines the file names

Exit codes: 0 done, 1 the run failed or a check found something, 2 usage or configuration.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&o.config, "config", "", "configuration file (YAML); every key is in configs/default.yaml")
	root.PersistentFlags().StringVar(&o.data, "data", "", "folder of the embedded engines (default ./data)")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newServe(o), newBroker(o), newMigrate(o), newDoctor(o), newOutbox(o), newCompare(o), newVersion())
	return root
}
