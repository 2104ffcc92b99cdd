package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	t.Parallel()
	t.Run("a very long name with Ümläuts, spaces/and slashes that no engine would take as it is", func(t *testing.T) {
		name := Name(t, "topic")
		require.Regexp(t, `^topic_names_a_very_long_[a-z0-9_]*_[0-9a-f]{12}$`, name)
		require.LessOrEqual(t, len(name), maxName)
		require.NotEqual(t, name, Name(t, "topic"))
	})
	require.Regexp(t, `^group_names_[0-9a-f]{12}$`, Group(t))
}
