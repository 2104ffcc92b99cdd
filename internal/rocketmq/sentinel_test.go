package rocketmq

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// brokerAt adds a broker to the watch list without watching it, and tells whether its watch was ended.
func brokerAt(s *sentinel, addr string) (ended func() bool) {
	ctx, stop := context.WithCancel(context.Background())
	s.add(addr, stop)
	return func() bool { return ctx.Err() != nil }
}

func hasReturned(s *sentinel) bool {
	select {
	case <-s.returned:
		return true
	default:
		return false
	}
}

// The watch list follows the route: a new broker is watched, one that left is waited for a while and then forgotten.
func TestSentinelFollowsTheRoute(t *testing.T) {
	t.Parallel()
	s := newSentinel([]string{"ns:9876"}, "T", Credentials{})
	require.Equal(t, routeEveryAway, s.untilNextRoute(), "nothing is known yet")
	require.NoError(t, s.ready(), "nothing is known to be away")
	require.Equal(t, []string{"a:1", "b:1"}, s.newcomers([]string{"a:1", "b:1"}))
	endedA, endedB := brokerAt(s, "a:1"), brokerAt(s, "b:1")
	require.Empty(t, s.newcomers([]string{"a:1", "b:1"}))
	require.Equal(t, routeEvery, s.untilNextRoute())
	require.False(t, hasReturned(s))

	s.absent("a:1", errors.New("gone"))
	require.Equal(t, routeEveryAway, s.untilNextRoute())
	require.NoError(t, s.ready(), "the other one is there")
	s.absent("b:1", errors.New("gone"))
	require.Regexp(t, `broker a:1 has been away for \d+s: gone`, s.ready())
	s.present("b:1")
	require.True(t, hasReturned(s))
	require.NoError(t, s.ready())

	// A broker may come back at another address.
	require.Equal(t, []string{"c:1"}, s.newcomers([]string{"b:1", "c:1"}))
	require.True(t, hasReturned(s))
	brokerAt(s, "c:1")
	require.Empty(t, s.newcomers([]string{"b:1", "c:1"}))
	require.False(t, hasReturned(s), "it is no newcomer any more")

	s.forget()
	require.False(t, endedA(), "it may come back")
	s.brokers["a:1"].routed = time.Now().Add(-forgetAfter - time.Second)
	s.brokers["b:1"].routed = s.brokers["a:1"].routed
	s.forget()
	require.True(t, endedA())
	require.False(t, endedB(), "it is not away, whatever the route says")
	require.Equal(t, routeEvery, s.untilNextRoute())
	s.present("a:1")
	s.absent("a:1", errors.New("gone")) // its watch ends a moment later
	require.NotContains(t, s.brokers, "a:1")
	require.False(t, hasReturned(s))
}
