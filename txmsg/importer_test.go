package txmsg_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The example is a program of another module, which can see nothing internal: it builds there, and prints what the
// example says.
func TestImportableByAnotherModule(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	program := strings.Replace(string(source), "package txmsg_test", "package main", 1)
	program = strings.Replace(program, "func Example()", "func main()", 1)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	module, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": program,
		// Its requirements are those of halfbox, so that nothing has to be looked up.
		"go.mod": strings.Replace(string(module), "module github.com/halfbox/halfbox", "module example.com/stock", 1) +
			"\nrequire github.com/halfbox/halfbox v0.0.0\n\nreplace github.com/halfbox/halfbox => " + root + "\n",
		"go.sum": string(sums),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	binary := filepath.Join(dir, "stock")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	var stdout, stderr bytes.Buffer
	run := exec.CommandContext(ctx, binary)
	run.Stdout, run.Stderr = &stdout, &stderr
	require.NoError(t, run.Run(), "%s", &stderr)
	_, comment, _ := strings.Cut(string(source), "// Output:\n")
	for line := range strings.Lines(comment) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "//") {
			require.Contains(t, stdout.String(), strings.TrimPrefix(line, "// "))
		}
	}
}
