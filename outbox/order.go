package outbox

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// HeadOfLine says what a dead letter does to its key on a sink that keeps the order.
type HeadOfLine string

// The policies.
const (
	// HeadOfLineBlock lets a dead letter hold its key: nothing later of the key is sent until it was redriven.
	HeadOfLineBlock HeadOfLine = "block"
	// HeadOfLinePark sets a dead letter aside and lets its key go on. The promise of order then excludes it.
	HeadOfLinePark HeadOfLine = "park"
)

// maxBehind bounds the records that one loop remembers as waiting behind another of their key.
const maxBehind = 20000

// maxRest bounds the rest after a pass in vain.
const maxRest = 10 * time.Second

// What one claim of an ordered sink looks at, in records.
const (
	minPage = 50
	maxPage = 1000
)

// keyed is a due record of an ordered sink.
type keyed struct {
	id       int64
	key      string
	version  int64
	reclaims int
	due      string // next_retry_time as the database writes it
}

func inKeyOrder(a, b keyed) int {
	return cmp.Or(cmp.Compare(a.version, b.version), cmp.Compare(a.id, b.id))
}

// cursor is a place in the order of idx_status_next_retry; its zero value is the beginning.
type cursor struct {
	due string
	id  int64
}

// order finds what an ordered sink may be sent next: the lowest unsent version of each key. A record may be sent when
// its predecessor, the next lower one of its key, is done or does not exist. As every relay keeps to that, everything
// below a record that is done is done too. And since the writer raises the version under the aggregate's row lock, a
// predecessor is committed, and seen, before its successor; so a record that was first once stays so until it is sent,
// and no lock is held between the look and the claim.
//
// It goes through the due records page by page, so that a key with a large backlog holds up no other, and remembers
// for a while which records it has seen behind others of their key. All of this is a hint: a look from the beginning
// finds what was forgotten, and the predecessor is asked for every time.
//
// Where a dead letter holds a key with a large backlog, a pass from the beginning to the end finds nothing but that. So
// it looks at the newest records besides after each page in vain, and rests after such a pass as long as that took:
// meanwhile it looks at the newest alone. It belongs to one goroutine.
type order struct {
	park   bool
	after  cursor
	page   int                // records of one look, at least
	least  int                // what page starts with
	behind map[string][]keyed // key -> records behind the one that is being sent, in the order of the key
	held   int                // number of records in behind
	ready  []string           // keys in behind whose head this loop has sent
	turn   bool               // with room for one record only, ready keys and the scan take turns
	began  time.Time          // of the pass
	vain   bool               // the pass has met a full page without anything to send
	found  bool               // the pass has met something to send
	rest   time.Time          // no pass begins before
	fresh  int                // records of the next look at what became due since a drain began, at least
	rested bool               // the last look was at the newest alone, for that reason
}

func newOrder(policy HeadOfLine) *order {
	return &order{park: policy == HeadOfLinePark, least: minPage, page: minPage, behind: map[string][]keyed{}}
}

// rewind starts from the beginning.
func (o *order) rewind() {
	clear(o.behind)
	o.after, o.held, o.ready, o.vain, o.found = cursor{}, 0, nil, false, false
}

// restart is rewind without a rest, for when there is something new at the old end.
func (o *order) restart() {
	o.rewind()
	o.rest = time.Time{}
}

// done says that the first record of a key is out of the way.
func (o *order) done(rows []row) {
	for _, r := range rows {
		if len(o.behind[r.rec.PartitionKey]) > 0 {
			o.ready = append(o.ready, r.rec.PartitionKey)
		}
	}
}

// find returns due records that are the first of their keys, at most q.limit and one of each key, in the order in which
// they are to be claimed. full is true when more may be due.
func (o *order) find(ctx context.Context, s store, q claimRequest) (heads []keyed, full bool, err error) {
	if q.since != "" {
		return o.findFresh(ctx, s, q)
	}
	o.rested = false
	if o.after == (cursor{}) {
		if o.began = time.Now(); o.began.Before(o.rest) {
			o.rested = true
			heads, _, err = o.findNewest(ctx, s, q, q.limit)
			return heads, len(heads) > 0, err
		}
	}
	followers := o.followers(q.limit)
	room := q.limit - len(followers)
	size := min(max(o.page, q.limit), maxPage)
	var page []keyed
	if room > 0 {
		if page, err = s.duePage(ctx, q, o.after, size); err != nil {
			return nil, false, err
		}
	}
	candidates := o.fold(page, room)
	end := room > 0 && len(page) < size && len(page) == candidates.looked
	heads, others, err := o.split(ctx, s, q.sink, append(followers, candidates.rows...))
	if err != nil {
		return nil, false, err
	}
	for _, k := range append(others, candidates.later...) {
		o.remember(k)
	}
	o.resize(len(page) == size, len(heads), q.limit)
	if len(heads) == 0 && len(page) == size {
		o.vain = true
		if heads, _, err = o.findNewest(ctx, s, q, q.limit); err != nil {
			return nil, false, err
		}
	}
	o.found = o.found || len(heads) > 0
	// At the end of a pass, what was behind what it has found is due now.
	full = !end || o.found && o.held > 0
	switch {
	case end:
		if o.vain {
			o.rest = time.Now().Add(min(time.Since(o.began), maxRest))
		}
		o.rewind()
	case candidates.looked > 0:
		last := page[candidates.looked-1]
		o.after = cursor{last.due, last.id}
	}
	return heads, full, nil
}

// resize looks further at once where most of what is due is behind something else.
func (o *order) resize(fullPage bool, heads, limit int) {
	switch {
	case fullPage && heads < limit/2+1:
		o.page = min(2*max(o.page, limit), maxPage)
	default:
		o.page = o.least
	}
}

// followers takes the next records of keys whose head was sent; the scan has at least half of the room.
func (o *order) followers(limit int) []keyed {
	n := (limit + 1) / 2
	if limit == 1 {
		if o.turn = !o.turn; !o.turn {
			return nil
		}
	}
	var out []keyed
	for len(o.ready) > 0 && len(out) < n {
		key := o.ready[0]
		o.ready = o.ready[1:]
		waiting := o.behind[key]
		if len(waiting) == 0 {
			continue
		}
		out = append(out, waiting[0])
		o.held--
		if o.behind[key] = waiting[1:]; len(waiting) == 1 {
			delete(o.behind, key)
		}
	}
	return out
}

// folded is a page with one candidate for each key.
type folded struct {
	rows   []keyed // candidates, in the order of the page
	later  []keyed // behind a candidate or behind what is remembered
	looked int     // rows of the page that this accounts for
}

// fold picks the lowest of each key of a page, for at most room keys.
func (o *order) fold(page []keyed, room int) (f folded) {
	at := map[string]int{}
	for _, k := range page {
		i, ok := at[k.key]
		if waiting := o.behind[k.key]; !ok && len(waiting) > 0 && inKeyOrder(waiting[0], k) < 0 {
			f.later = append(f.later, k)
			f.looked++
			continue
		}
		if !ok && len(f.rows) == room {
			return f
		}
		f.looked++
		switch {
		case !ok:
			at[k.key] = len(f.rows)
			f.rows = append(f.rows, k)
		case inKeyOrder(k, f.rows[i]) < 0:
			f.rows[i], k = k, f.rows[i]
			f.later = append(f.later, k)
		default:
			f.later = append(f.later, k)
		}
	}
	return f
}

func (o *order) remember(k keyed) {
	if o.held >= maxBehind {
		return
	}
	waiting := o.behind[k.key]
	i, known := slices.BinarySearchFunc(waiting, k, inKeyOrder)
	if known {
		return
	}
	o.behind[k.key] = slices.Insert(waiting, i, k)
	o.held++
}

// split tells records that are the first of their key from those that are not.
func (o *order) split(ctx context.Context, s store, sink string, rows []keyed) (heads, others []keyed, err error) {
	held, err := s.heldBack(ctx, sink, rows, o.park)
	if err != nil {
		return nil, nil, err
	}
	for i, k := range rows {
		if held[i] {
			others = append(others, k)
		} else {
			heads = append(heads, k)
		}
	}
	return heads, others, nil
}

// findFresh is find among what became due since a drain began. Where most of what came last is held it looks further
// back the next time: what is behind that would have to wait for the end of the drain.
func (o *order) findFresh(ctx context.Context, s store, q claimRequest) (heads []keyed, full bool, err error) {
	size := min(max(o.fresh, q.limit), maxPage)
	if heads, full, err = o.findNewest(ctx, s, q, size); err != nil {
		return nil, false, err
	}
	o.fresh = 0
	if full && len(heads) < q.limit/2+1 {
		o.fresh = 2 * size
	}
	return heads, full, nil
}

// findNewest is find from the other end, for events that must not wait behind a backlog. It remembers nothing.
func (o *order) findNewest(ctx context.Context, s store, q claimRequest, size int) (heads []keyed, full bool, err error) {
	q.newest = true
	page, err := s.duePage(ctx, q, cursor{}, size)
	if err != nil {
		return nil, false, err
	}
	heads, _, err = o.split(ctx, s, q.sink, (&order{}).fold(page, q.limit).rows)
	return heads, len(page) == size, err
}
