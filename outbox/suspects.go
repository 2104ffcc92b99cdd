package outbox

import "slices"

// maxSuspects bounds the suspects that a loop remembers: every claim names them all. Beyond it the oldest is forgotten.
const maxSuspects = 200

// suspects are records that timed out, or failed as a probe, while the sink answered nothing: each may be at fault for
// what looks like an outage. They are sent one at a time, and no claim takes one along with others. The order is that
// in which they were last suspected. It belongs to one goroutine.
type suspects struct{ ids []int64 }

func (s *suspects) len() int          { return len(s.ids) }
func (s *suspects) has(id int64) bool { return slices.Contains(s.ids, id) }

// add remembers id as the newest.
func (s *suspects) add(id int64) {
	s.drop(id)
	if len(s.ids) == maxSuspects {
		s.ids = slices.Delete(s.ids, 0, 1)
	}
	s.ids = append(s.ids, id)
}

func (s *suspects) drop(ids ...int64) {
	if len(s.ids) > 0 {
		s.ids = slices.DeleteFunc(s.ids, func(id int64) bool { return slices.Contains(ids, id) })
	}
}
