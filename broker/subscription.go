package broker

import (
	"maps"
	"slices"
	"strings"
)

// subscription is a TAG filter: "*" or "" is everything, "a || b" is any of the
// tags. The zero value takes everything.
type subscription struct {
	expression string
	kind       string   // "TAG", "SQL92"
	tags       []uint64 // hashes; nil takes everything
}

func parseSubscription(expression, kind string) subscription {
	sub := subscription{expression: strings.TrimSpace(expression), kind: kind}
	if sub.expression == "" || sub.expression == "*" {
		return sub
	}
	for tag := range strings.SplitSeq(sub.expression, "||") {
		if tag = strings.TrimSpace(tag); tag != "" {
			sub.tags = append(sub.tags, tagHash(tag))
		}
	}
	return sub
}

// supported: SQL92 is not.
func (s subscription) supported() bool { return s.kind == "" || s.kind == "TAG" }

// match returns nil when everything matches. It compares hashes: the client
// compares the tags themselves again.
func (s subscription) match() func(tag uint64) bool {
	if s.tags == nil {
		return nil
	}
	return func(tag uint64) bool { return slices.Contains(s.tags, tag) }
}

func sameSubscriptions(a, b map[string]subscription) bool {
	return maps.EqualFunc(a, b, func(x, y subscription) bool {
		return x.expression == y.expression && x.kind == y.kind
	})
}
