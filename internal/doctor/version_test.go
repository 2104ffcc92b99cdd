package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAtLeast(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"8.0.17": true, "8.0.36-28": true, "8.4.0": true, "9.7.4-2": true, "10.0.0": true,
		"8.0.16": false, "5.7.44-log": false, "8.0": false, "": false, "x.y.z": false,
	} {
		require.Equal(t, want, atLeast(version, 8, 0, 17), version)
		require.Equal(t, want, supported(version), version)
	}
	require.False(t, supported("11.8.2-MariaDB-ubu2404"))
}
