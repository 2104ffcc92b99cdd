package netfault

import (
	"regexp"
	"strconv"
	"time"
)

// ShiftBornTime makes messages on connections that are made from now on look as if their sender's clock were wrong by d.
func (c *Cluster) ShiftBornTime(d time.Duration) { c.bornShift.Store(int64(d)) }

// bornTime finds the born time in the header of a send, in ms: 13 digits until the year 2286. The header's names are
// whole words or single letters.
var bornTime = regexp.MustCompile(`"(?:bornTimestamp|g)":"(\d{13})"`)

// shiftBornTime changes the header of a send in place.
func (f frame) shiftBornTime(d time.Duration) {
	head := f.raw[:len(f.raw)-len(f.body)]
	if d == 0 || f.messages() == 0 {
		return
	}
	at := bornTime.FindSubmatchIndex(head)
	if at == nil {
		return
	}
	digits := head[at[2]:at[3]]
	if ms, err := strconv.ParseInt(string(digits), 10, 64); err == nil {
		copy(digits, strconv.FormatInt(ms+d.Milliseconds(), 10))
	}
}
