package remoting_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/remoting"
)

func TestFirstAnswer(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused")
	ask := func(ctx context.Context, server string) ([]string, error) {
		switch server {
		case "down:1":
			return nil, down
		case "empty:1":
			return nil, nil
		case "silent:1":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return []string{server}, nil
	}
	for name, c := range map[string]struct {
		servers []string
		found   []string
		fails   string
	}{
		"the first one":               {servers: []string{"a:1", "b:1"}, found: []string{"a:1"}},
		"one that is down":            {servers: []string{"down:1", "http://b:1"}, found: []string{"b:1"}},
		"one that knows nothing":      {servers: []string{"empty:1", "b:1"}, found: []string{"b:1"}},
		"ones that say nothing":       {servers: []string{"silent:1", "silent:1", "silent:1", "b:1"}, found: []string{"b:1"}},
		"none that knows":             {servers: []string{"down:1", "empty:1"}},
		"empty, and one that is mute": {servers: []string{"silent:1", "empty:1"}},
		"all down":                    {servers: []string{"down:1", "down:1"}, fails: "name server down:1: connection refused"},
		"all mute":                    {servers: []string{"silent:1", "silent:1"}, fails: "name server silent:1: context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := time.Minute
			if c.found == nil { // one that says nothing is waited for
				limit = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			found, err := remoting.FirstAnswer(ctx, c.servers, ask)
			require.Equal(t, c.found, found)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			if c.found != nil {
				require.NoError(t, ctx.Err(), "it waited for one that says nothing")
			}
		})
	}
}
