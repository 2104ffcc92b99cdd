package e2e

import (
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// metric sums a metric of a process over its labels.
func metric(t testing.TB, p *process, name string) float64 {
	t.Helper()
	status, text := get(t, p.admin+"/metrics")
	require.Equal(t, http.StatusOK, status)
	lines := regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, lines, "no metric %s", name)
	var sum float64
	for _, m := range lines {
		v, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		sum += v
	}
	return sum
}
