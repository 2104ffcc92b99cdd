// Package brokertest starts brokers for tests.
package brokertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/halfbox/halfbox/broker"
)

// stopTimeout bounds the stop of a broker at the end of a test, on a machine however busy.
const stopTimeout = time.Minute

// Config is the configuration Start uses: a new folder, a free port, and times
// short enough that a test waits for checks and retries and not for the clock.
func Config(t testing.TB) broker.Config {
	t.Helper()
	return broker.Config{
		Dir:                t.TempDir(),
		Listen:             "127.0.0.1:0",
		TransactionTimeout: 300 * time.Millisecond,
		CheckInterval:      300 * time.Millisecond,
		DelayLevels: []time.Duration{
			50 * time.Millisecond, 75 * time.Millisecond, 100 * time.Millisecond,
			125 * time.Millisecond, 150 * time.Millisecond, 200 * time.Millisecond,
		},
		Logger: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)),
	}
}

// Start starts a broker that lives as long as the test. Options change Config's
// defaults.
func Start(t testing.TB, opts ...func(*broker.Config)) *broker.Broker {
	t.Helper()
	cfg := Config(t)
	for _, opt := range opts {
		opt(&cfg)
	}
	return StartConfig(t, cfg)
}

// StartConfig starts a broker with exactly this configuration.
func StartConfig(t testing.TB, cfg broker.Config) *broker.Broker {
	t.Helper()
	b, err := broker.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { stop(t, b) }) // stopping twice is fine: see Restart
	require.NoError(t, b.Start())
	return b
}

// Restart stops the broker and starts another on the same folder and port with
// the same configuration, changed by options.
func Restart(t testing.TB, b *broker.Broker, opts ...func(*broker.Config)) *broker.Broker {
	t.Helper()
	cfg := b.Config()
	cfg.Listen = b.Addr()
	stop(t, b)
	for _, opt := range opts {
		opt(&cfg)
	}
	return StartConfig(t, cfg)
}

func stop(t testing.TB, b *broker.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	require.NoError(t, b.Stop(ctx))
}
