package outbox

import "time"

// poll is the pause between two looks that find nothing more to do: least after work, doubled while idle up to most.
type poll struct{ least, most, last time.Duration }

func (p *poll) next(worked bool) time.Duration {
	if worked || p.last == 0 {
		p.last = p.least
	} else {
		p.last = min(2*p.last, p.most)
	}
	return p.last
}
