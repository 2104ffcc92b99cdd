package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
)

// TestShortRun is a run of every peer that is too short to measure anything but that it works.
func TestShortRun(t *testing.T) {
	if !enginetest.Required() {
		t.Skip("needs MySQL and RocketMQ: HALFBOX_TEST_ENGINES=real and their addresses")
	}
	o, _, err := parse([]string{"-events", "200", "-live", "160", "-rounds", "1", "-batch", "20", "-outage=false"})
	require.NoError(t, err)
	rep, err := measure(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, rep.Samples, len(contenders()))
	for _, s := range rep.Samples {
		require.Positive(t, s.WritePerSecond, s.Peer)
		require.Positive(t, s.DrainPerSecond, s.Peer)
		require.Zero(t, s.DrainLost, s.Peer)
		if s.Peer == "halfbox" {
			require.Zero(t, s.LiveLost, s.Peer)
		}
	}
}

func TestOptions(t *testing.T) {
	engines := []string{"-mysql", "root@tcp(127.0.0.1:3306)/x", "-rocketmq", "127.0.0.1:9876"}
	_, _, err := parse(engines)
	require.NoError(t, err)
	for wrong, says := range map[string]string{
		"-events=0": "at least 1", "-live=-1": "negative", "-peers=nobody": `peer "nobody"`, "-mysql=": "scripts/engines up", "more": "unexpected",
	} {
		_, _, err := parse(append(slices.Clone(engines), wrong))
		require.ErrorContains(t, err, says, wrong)
	}
}

func TestReport(t *testing.T) {
	four := 4
	r := &report{Samples: []sample{
		{Peer: "bare", DrainPerSecond: 1000},
		{Peer: "bare", DrainPerSecond: 3000},
		{Peer: "bare", DrainPerSecond: 2000},
		{Peer: "halfbox", DrainPerSecond: 1800},
		{Peer: "watermill-queue", DrainPerSecond: 500, LiveLost: 3, OutageLost: &four},
		{Peer: "watermill-queue", DrainPerSecond: 700, LiveLost: 2, OutageLost: &four},
	}}
	var table strings.Builder
	r.print(&table)
	lines := strings.Split(strings.TrimSpace(table.String()), "\n")
	require.Len(t, lines, 4, "peers that were not measured have no line")
	require.Equal(t, []string{"halfbox", "0", "1800", "90", "%", "0", "0", "0", "-", "0"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"watermill-queue", "0", "600", "30", "%", "0", "0", "5", "8", "0"}, strings.Fields(lines[3]))
}

func TestWhatIsWrittenNamesNoServer(t *testing.T) {
	file := t.TempDir() + "/run.json"
	o := options{dsn: "root:secret@tcp(db.example:3306)/", nameServer: "mq.example:9876", events: 1}
	require.NoError(t, write(file, &report{Options: o.public()}))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NotContains(t, string(text), "example")
	require.NotContains(t, string(text), "secret")
}
