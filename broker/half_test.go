package broker

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestHalvesOfOneDueTimeAreTakenAsStored(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry())
	require.NoError(t, err)
	h := newHalves(m)
	stored := make([]int64, 50)
	for i := range stored {
		stored[i] = int64(i * 100)
		h.add(stored[i], 7)
	}
	require.Empty(t, h.take(6, len(stored)))
	first := h.take(7, 20)
	require.Equal(t, stored[:20], first)
	h.postpone(first, 7)
	require.Equal(t, stored, h.take(7, len(stored)))

	reversed := slices.Clone(stored)
	slices.Reverse(reversed)
	h.postpone(reversed, 9)
	require.Equal(t, stored, h.take(9, len(stored)))
}
