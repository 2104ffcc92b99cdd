package faults_test

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/halfbox/halfbox/internal/faults"
)

// killFlag makes the test binary a process that reaches a crash point three times.
const killFlag = "HALFBOX_TEST_KILL_FLAG"

func TestMain(m *testing.M) {
	if flag := os.Getenv(killFlag); flag != "" {
		set, err := faults.Parse([]string{flag}, os.Getenv, faults.KillSelf)
		if err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		for n := 1; n <= 3; n++ {
			fmt.Println("reached", n)
			set.Hook(faults.OutboxAfterSend)()
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func allowed(name string) string {
	if name == faults.AllowVariable {
		return "1"
	}
	return ""
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, point := range faults.Points() {
		set, err := faults.Parse([]string{point + "=kill@1"}, allowed, func() {})
		require.NoError(t, err)
		require.NotNil(t, set.Hook(point))
		for _, other := range faults.Points() {
			require.Equal(t, other == point, set.Hook(other) != nil)
		}
	}
	set, err := faults.Parse([]string{"outbox.after-send=kill@7", "outbox.after-mark=kill@1000000"}, allowed, func() {})
	require.NoError(t, err)
	require.Len(t, set, 2)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{
		{""},
		{"outbox.after-send"},
		{"outbox.after-send=kill"},
		{"outbox.after-send=kill@"},
		{"outbox.after-send=kill@0"},
		{"outbox.after-send=kill@-1"},
		{"outbox.after-send=kill@x"},
		{"outbox.after-send=kill@1.5"},
		{"outbox.after-send=kill@99999999999999999999"},
		{"outbox.after-send=stop@1"},
		{"=kill@1"},
		{"outbox.after-nothing=kill@1"},
		{"OUTBOX.AFTER-SEND=kill@1"},
		{"outbox.after-send=kill@1", "outbox.after-send=kill@2"},
		{"outbox.after-send=kill@1", "nonsense"},
	} {
		set, err := faults.Parse(flags, allowed, func() {})
		require.ErrorContains(t, err, "--fault", "%q", flags)
		require.Nil(t, set)
	}
}

func TestParseNeedsLeave(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "0", "true", "yes"} {
		_, err := faults.Parse([]string{"outbox.after-send=kill@1"}, func(string) string { return value }, func() {})
		require.ErrorContains(t, err, faults.AllowVariable)
	}
	set, err := faults.Parse(nil, func(string) string { return "" }, func() {})
	require.NoError(t, err, "no flag needs no leave")
	require.Nil(t, set.Hook(faults.OutboxAfterSend), "and every hook is nil")
}

func TestFiresExactlyAtN(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 50} {
		reached, kills := 0, []int{}
		set, err := faults.Parse([]string{fmt.Sprintf("outbox.after-send=kill@%d", n)}, allowed, func() { kills = append(kills, reached) })
		require.NoError(t, err)
		for reached = 1; reached <= 3*n; reached++ {
			set.Hook(faults.OutboxAfterSend)()
		}
		require.Equal(t, []int{n}, kills)
	}
}

func TestFiresOnceFromManyGoroutines(t *testing.T) {
	t.Parallel()
	var kills atomic.Int64
	set, err := faults.Parse([]string{"outbox.after-send=kill@100", "outbox.after-mark=kill@401"}, allowed, func() { kills.Add(1) })
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				set.Hook(faults.OutboxAfterSend)()
				set.Hook(faults.OutboxAfterMark)()
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, kills.Load(), "the points count on their own; the second was reached 400 times only")
}

func TestKillSelf(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), killFlag+"=outbox.after-send=kill@2", faults.AllowVariable+"=1")
	out, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	status, ok := exit.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.True(t, status.Signaled())
	require.Equal(t, syscall.SIGKILL, status.Signal())
	require.Equal(t, "reached 1\nreached 2\n", string(out), "at the second time")
}
