package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelayConfigIsValidated(t *testing.T) {
	t.Parallel()
	e := newSQLite(t)
	db := e.db(t)
	for name, change := range map[string]func(*RelayConfig){
		"no database":              func(c *RelayConfig) { c.DB = nil },
		"no sinks":                 func(c *RelayConfig) { c.Sinks = nil },
		"nil sink":                 func(c *RelayConfig) { c.Sinks = []Sink{nil} },
		"two of a name":            func(c *RelayConfig) { c.Sinks = []Sink{newFakeSink(nil), newFakeSink(nil)} },
		"nameless sink":            func(c *RelayConfig) { c.Sinks = []Sink{&fakeSink{}} },
		"skip-locked on SQLite":    func(c *RelayConfig) { c.Claim = ClaimSkipLocked },
		"ordered stranger":         func(c *RelayConfig) { c.Ordered = map[string]HeadOfLine{"other": HeadOfLineBlock} },
		"head of line":             func(c *RelayConfig) { c.Ordered = map[string]HeadOfLine{"main": "skip"} },
		"unknown claim":            func(c *RelayConfig) { c.Claim = "guess" },
		"send timeout at lease":    func(c *RelayConfig) { c.SendTimeout = c.Lease },
		"send timeout above third": func(c *RelayConfig) { c.SendTimeout = c.Lease/3 + 1 },
		"statement timeout":        func(c *RelayConfig) { c.StatementTimeout = c.Lease },
		"batch":                    func(c *RelayConfig) { c.Batch = -1 },
		"largest batch":            func(c *RelayConfig) { c.BatchMax = 1001 },
		"bytes of a batch":         func(c *RelayConfig) { c.BatchBytes = -1 },
		"jitter":                   func(c *RelayConfig) { c.Jitter = 1 },
		"poll":                     func(c *RelayConfig) { c.PollMin = 2 * c.PollMax },
		"negative duration":        func(c *RelayConfig) { c.ReclaimInterval = -1 },
		"breaker":                  func(c *RelayConfig) { c.Breaker.OpenMax = time.Millisecond },
		"reclaims":                 func(c *RelayConfig) { c.MaxReclaims = 2 },
		"drain rate":               func(c *RelayConfig) { c.DrainRate = -1 },
		"instance":                 func(c *RelayConfig) { c.Instance = "ä" },
	} {
		cfg := testConfig(t, db, newFakeSink(nil))
		change(&cfg)
		_, err := NewRelay(cfg)
		require.Error(t, err, name)
	}
	r := newTestRelay(t, RelayConfig{DB: db, Sinks: []Sink{newFakeSink(nil)}})
	require.Equal(t, 20, r.cfg.Batch)
	require.Equal(t, 10*time.Minute, r.cfg.Lease)
	require.Equal(t, ClaimConditionalUpdate, r.cfg.Claim)
	require.Equal(t, 3, r.cfg.MaxRetries)
	none := newTestRelay(t, RelayConfig{DB: db, Sinks: []Sink{newFakeSink(nil)}, MaxRetries: -1, Jitter: -1})
	require.Zero(t, none.cfg.MaxRetries)
	require.Zero(t, none.cfg.Jitter)
}
