//go:build unix

package faults_test

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/faults"
)

func TestFreezeSelf(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), killFlag+"=outbox.after-send=freeze@2", faults.AllowVariable+"=1")
	cmd.Stdout = &out
	require.NoError(t, cmd.Start())
	var status syscall.WaitStatus
	_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped(), "the process is frozen, not gone")
	require.Equal(t, syscall.SIGSTOP, status.StopSignal())
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, cmd.Wait())
	require.Equal(t, "reached 1\nreached 2\nreached 3\n", out.String(), "it froze once and went on")
}
