package doctor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
	"github.com/halfbox/halfbox/internal/doctor"
	"github.com/halfbox/halfbox/internal/enginetest"
)

// run runs the doctor in a minute: where it has no deadline, each question has 5 s, which a busy machine may need.
func run(t testing.TB, cfg doctor.Config) []doctor.Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return doctor.Run(ctx, cfg)
}

// The topic of half messages that were given up on is looked at as the rescue does, which changes nothing.
func TestDiscardedTopic(t *testing.T) {
	t.Parallel()
	quick := func(c *broker.Config) {
		c.TransactionTimeout, c.CheckInterval, c.CheckMax = 20*time.Millisecond, 20*time.Millisecond, 1
	}
	b := brokertest.Start(t, quick)
	check := func(nameServer string) []doctor.Finding {
		return run(t, doctor.Config{Cluster: &doctor.Cluster{
			NameServers: []string{nameServer}, DiscardedTopic: enginetest.DiscardedTopic, RescueGroup: "TOOLS_CONSUMER",
		}})
	}
	finding := func(verdict doctor.Verdict, detail string) doctor.Finding {
		return doctor.Finding{Check: "topic TRANS_CHECK_MAX_TIME_TOPIC", Verdict: verdict, Detail: detail}
	}
	require.Contains(t, check(b.Addr()), finding(doctor.OK, "can be read; holds 0 half messages of all groups"))
	topic := enginetest.Topic(t, []string{b.Addr()})
	enginetest.SendHalf(t, b.Addr(), enginetest.Half{Topic: topic, Group: "g", MsgID: "m", Body: []byte("x")})
	require.Eventually(t, func() bool { return len(enginetest.Discarded(t, b.Addr(), "g")) == 1 }, time.Minute, 10*time.Millisecond)
	for range 2 {
		require.Contains(t, check(b.Addr()), finding(doctor.OK, "can be read; holds 1 half messages of all groups"))
	}

	// Found, and not to be reached at the address that it advertises.
	lost := brokertest.Start(t, quick, func(c *broker.Config) { c.Advertise = "127.0.0.1:1" })
	bad := false
	for _, f := range check(lost.Addr()) {
		if f.Check == "topic TRANS_CHECK_MAX_TIME_TOPIC" {
			bad = f.Verdict == doctor.Bad
			require.Contains(t, f.Remedy, "TOOLS_CONSUMER")
		}
	}
	require.True(t, bad)
}
