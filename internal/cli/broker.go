package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/app"
)

func newBroker(o *options) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Run the RocketMQ-compatible broker alone",
		Long: `Run the name server and broker that "halfbox serve" has in its process as a process of its own, so that
several processes share it. Its storage is DATA/broker and belongs to one process at a time.`,
		Example: `  halfbox broker &
  HALFBOX_ROCKETMQ_NAME_SERVERS=127.0.0.1:9876 halfbox serve --roles api,points &
  HALFBOX_ROCKETMQ_NAME_SERVERS=127.0.0.1:9876 halfbox serve --roles relay --admin 127.0.0.1:8082`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runBroker(cmd.Context(), o, listen) },
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address of name server and broker (default 127.0.0.1:9876)")
	return cmd
}

func runBroker(ctx context.Context, o *options, listen string) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	if listen != "" {
		cfg.Broker.Listen = listen
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	log, err := newLogger(cfg.Log, o.env.Stderr)
	if err != nil {
		return err
	}
	b, err := app.OpenBroker(cfg, broker.Config{Logger: log.Named("broker")})
	if err != nil {
		return err
	}
	if err := b.Start(); err != nil {
		return &runError{err}
	}
	fmt.Fprintf(o.env.Stdout, "halfbox broker is ready: %s data %s\n", b.Addr(), cfg.Data)
	<-ctx.Done()
	log.Info("stopping; once more to stop at once")
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout)
	defer cancel()
	if err := b.Stop(bound); err != nil {
		log.Warn("not everything finished in time", zap.Error(err))
	}
	return nil
}
