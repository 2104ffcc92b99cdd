package cli

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app"
	"github.com/halfbox/halfbox/internal/faults"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/internal/rocketmq"
)

type serveFlags struct {
	roles  string
	http   string
	admin  string
	faults []string
}

func newServe(o *options) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the order service",
		Long: `Run the order service: the order API with its transactional producer (role api), the outbox relay (role relay),
the points consumer (role points), and, when no RocketMQ name server is configured, the in-process broker. It runs
until Ctrl-C, which lets work in flight finish; a second Ctrl-C stops at once.`,
		Example: `  halfbox serve
  halfbox serve --data /var/lib/halfbox --http :80
  HALFBOX_ROCKETMQ_NAME_SERVERS=127.0.0.1:9876 halfbox serve --roles relay --admin 127.0.0.1:8082
  HALFBOX_LOG_LEVEL=debug halfbox serve`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), o, f) },
	}
	cmd.Flags().StringVar(&f.roles, "roles", "", fmt.Sprintf("what this process does, comma-separated: %v (default all)", app.Roles()))
	cmd.Flags().StringVar(&f.http, "http", "", "address of the public API (default :8080)")
	cmd.Flags().StringVar(&f.admin, "admin", "", "address of the operator's listener (default 127.0.0.1:8081)")
	cmd.Flags().StringArrayVar(&f.faults, "fault", nil, "POINT=kill@N: kill this process at a crash point, for tests")
	_ = cmd.Flags().MarkHidden("fault")
	return cmd
}

// options turns flags and configuration into what the application needs.
func (f serveFlags) options(o *options) (app.Options, error) {
	cfg, err := o.load()
	if err != nil {
		return app.Options{}, err
	}
	if f.http != "" {
		cfg.HTTP.Listen = f.http
	}
	if f.admin != "" {
		cfg.Admin.Listen = f.admin
	}
	if err := cfg.Validate(); err != nil {
		return app.Options{}, err
	}
	opts := app.Options{Config: cfg}
	if f.roles != "" {
		if opts.Roles, err = app.ParseRoles(f.roles); err != nil {
			return app.Options{}, err
		}
	}
	if opts.Faults, err = faults.Parse(f.faults, o.getenv, faults.KillSelf); err != nil {
		return app.Options{}, err
	}
	opts.Logger, err = newLogger(cfg.Log, o.env.Stderr)
	return opts, err
}

func serve(ctx context.Context, o *options, f serveFlags) error {
	opts, err := f.options(o)
	if err != nil {
		return err
	}
	httpapi.ReleaseMode()
	if err := rocketmq.Configure(opts.Logger.Named("rocketmq")); err != nil {
		return err
	}
	a, err := app.New(opts)
	if err != nil {
		return err
	}
	if err := runUntilDone(ctx, a, opts, o.env.Stdout); err != nil {
		return &runError{err}
	}
	return nil
}

// runUntilDone runs the application until ctx ends or a part of it dies.
func runUntilDone(ctx context.Context, a *app.App, opts app.Options, out io.Writer) error {
	err := a.Start()
	if err == nil {
		announced := make(chan struct{})
		waiting, cancel := context.WithCancel(ctx)
		go func() {
			defer close(announced)
			if a.AwaitReady(waiting) == nil {
				announce(out, a.Addresses(), opts.Config)
			}
		}()
		select {
		case <-ctx.Done():
			opts.Logger.Info("stopping; once more to stop at once")
		case err = <-a.Failed():
		}
		cancel()
		<-announced
	}
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout)
	defer cancel()
	if stopErr := a.Stop(bound); stopErr != nil {
		// Whatever could not finish is repaired at the next start: by check-backs, redelivery and leases.
		opts.Logger.Warn("not everything finished in time", zap.Error(stopErr))
	}
	return err
}

// announce prints the ready line, and for the public API three things to try.
func announce(out io.Writer, at app.Addresses, cfg configs.Config) {
	line := "halfbox is ready:"
	if at.HTTP != "" {
		line += " api http://" + reachable(at.HTTP)
	}
	line += " operator http://" + reachable(at.Admin)
	if at.Broker != "" {
		line += " broker " + at.Broker + " data " + cfg.Data
	}
	fmt.Fprintln(out, line)
	if at.HTTP == "" {
		return
	}
	api := "http://" + reachable(at.HTTP)
	fmt.Fprintf(out, `try:
  curl -s -X POST %[1]s/api/v1/orders -H 'Content-Type: application/json' -H 'Idempotency-Key: first-order' -d '{"user_id":7,"amount_cents":9990}'
  curl -s %[1]s/api/v1/users/7/points
  curl -s http://%[2]s/readyz
`, api, reachable(at.Admin))
}

// reachable is an address one can connect to: a listener on every address is reached at localhost.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
