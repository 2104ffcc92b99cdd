package enginetest

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// maxName keeps names within what the engines take: 64 characters for a schema, 127 for a topic, of which a retry
// topic's prefix takes some.
const maxName = 60

// Name returns a name that no other test has, with the test's own in it for whoever looks at the engine. It is made
// of small letters, digits and underscores.
func Name(t testing.TB, prefix string) string {
	t.Helper()
	clean := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}
	unique := strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	name := prefix + "_" + strings.Map(clean, strings.ToLower(strings.TrimPrefix(t.Name(), "Test")))
	return name[:min(len(name), maxName-1-len(unique))] + "_" + unique
}

// Group returns the name of a producer or consumer group that no other test has. Groups need not be created.
func Group(t testing.TB) string {
	t.Helper()
	return Name(t, "group")
}
