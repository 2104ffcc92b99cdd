// Command bench measures halfbox's outbox beside its peers on the same MySQL and RocketMQ: a bare loop of the same
// SQL, and watermill-sql's forwarder with both of its MySQL schemas. See README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, out, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 2
	}
	rep, err := measure(ctx, o)
	// What was measured before an interruption is worth keeping.
	if rep != nil {
		rep.print(os.Stdout)
		if werr := write(out, rep); werr != nil {
			fmt.Fprintln(os.Stderr, "bench:", werr)
			return 1
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func write(file string, rep *report) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600)
}

func parse(args []string) (o options, out string, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.dsn, "mysql", os.Getenv("HALFBOX_TEST_MYSQL_DSN"), "DSN of a MySQL `server`; schemas are made and dropped there")
	f.StringVar(&o.nameServer, "rocketmq", os.Getenv("HALFBOX_TEST_ROCKETMQ"), "RocketMQ name server, `host:port`; topics are made there")
	f.IntVar(&o.events, "events", 20000, "events to write and to drain, per peer and round")
	f.IntVar(&o.live, "live", 16*500, "events written while the relay works, per peer and round; 0 leaves the phase out")
	f.IntVar(&o.writers, "writers", 16, "concurrent writers")
	f.IntVar(&o.batch, "batch", 100, "batch size of every peer")
	f.IntVar(&o.rounds, "rounds", 3, "rounds; the peers take turns within each")
	f.DurationVar(&o.slow, "slow", 0, "time that every send takes longer in the live phase")
	f.BoolVar(&o.outage, "outage", true, "measure what a broker outage in mid-batch loses")
	f.StringVar(&o.peers, "peers", strings.Join(peerNames(), ","), "peers to measure")
	f.StringVar(&out, "json", "", "write every sample to `file`")
	if err := f.Parse(args); err != nil {
		return o, "", err
	}
	if f.NArg() > 0 {
		return o, "", fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, out, o.validate()
}
