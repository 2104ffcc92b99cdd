package outbox

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/halfbox/halfbox/internal/database"
)

// modelRow is what the state machine says about one record.
type modelRow struct {
	status   Status
	owner    string
	expired  bool
	retries  int
	reclaims int
}

// TestStateMachineAgainstModel runs random schedules of claims, write-backs by present and former owners, expiries
// and reclaims, and compares every record with the model after each step.
func TestStateMachineAgainstModel(t *testing.T) {
	t.Parallel()
	onModes(t, func(t *testing.T, e *engine, mode ClaimMode) {
		db := e.db(t)
		write(t, db, "A"+string(mode), 6)
		all := entries(t, db)
		r := newTestRelay(t, testConfig(t, db, newFakeSink(nil)))
		rapid.Check(t, func(rt *rapid.T) {
			m := &machine{t: rt, s: r.store, r: r, mode: mode, rows: map[int64]*modelRow{}}
			put6(rt, db)
			for _, e := range all {
				m.ids = append(m.ids, e.ID)
				m.rows[e.ID] = &modelRow{status: StatusWait}
			}
			rt.Repeat(map[string]func(*rapid.T){
				"claim": m.claim, "write back": m.writeBack, "renew": m.renew, "expire": m.expire, "reclaim": m.reclaim, "": m.check,
			})
		})
	})
}

// put6 brings every record back to its beginning.
func put6(t *rapid.T, db *database.DB) {
	s := newStore(db)
	_, err := s.exec(context.Background(), `UPDATE t_event_record SET status = 'WAIT', claim_owner = NULL, lease_until = NULL, retry_count = 0,
 reclaim_count = 0, next_retry_time = '2020-01-01 00:00:00.000', last_error = NULL, sent_at = NULL`)
	require.NoError(t, err)
}

type machine struct {
	t      *rapid.T
	s      store
	r      *Relay
	mode   ClaimMode
	ids    []int64
	rows   map[int64]*modelRow
	owners []string
}

func (m *machine) claim(t *rapid.T) {
	limit := rapid.IntRange(1, 6).Draw(t, "limit")
	owner := newOwner("p")
	m.owners = append(m.owners, owner)
	var due []int64
	for _, id := range m.ids {
		if m.rows[id].status == StatusWait {
			due = append(due, id)
		}
	}
	// All were due at the same time, so they come by id.
	due = due[:min(limit, len(due))]
	if len(due) > 0 && m.rows[due[0]].reclaims >= aloneAfter {
		due = due[:1]
	} else {
		due = slices.DeleteFunc(due, func(id int64) bool { return m.rows[id].reclaims >= aloneAfter })
	}
	c, err := m.s.takeClaim(context.Background(), m.mode, claimRequest{sink: "main", owner: owner, limit: limit, lease: time.Hour})
	require.NoError(t, err)
	require.ElementsMatch(t, due, ids(c.rows))
	for _, row := range c.rows {
		require.Equal(t, m.rows[row.id].retries, row.retries)
		*m.rows[row.id] = modelRow{status: StatusSending, owner: owner, retries: row.retries, reclaims: row.reclaims}
	}
}

// anyClaim picks rows and an owner, present or former.
func (m *machine) anyClaim(t *rapid.T) (owner string, want []int64, hit []int64) {
	if len(m.owners) == 0 {
		t.Skip("nothing was claimed yet")
	}
	owner = rapid.SampledFrom(m.owners[max(0, len(m.owners)-4):]).Draw(t, "owner")
	want = rapid.SliceOfNDistinct(rapid.SampledFrom(m.ids), 1, 6, rapid.ID[int64]).Draw(t, "rows")
	slices.Sort(want)
	for _, id := range want {
		if m.rows[id].status == StatusSending && m.rows[id].owner == owner {
			hit = append(hit, id)
		}
	}
	return owner, want, hit
}

func (m *machine) writeBack(t *rapid.T) {
	owner, want, hit := m.anyClaim(t)
	ctx, at := context.Background(), time.Now().UTC()
	var n int64
	var err error
	switch op := rapid.SampledFrom([]string{"success", "release", "put off", "retry", "fail"}).Draw(t, "op"); op {
	case "success":
		n, err = m.s.success(ctx, owner, want, at)
		m.change(hit, modelRow{status: StatusSuccess, owner: owner})
	case "release":
		n, err = m.s.release(ctx, owner, want)
		m.change(hit, modelRow{status: StatusWait})
	case "put off":
		n, err = m.s.putOff(ctx, owner, want, at, "x")
		m.change(hit, modelRow{status: StatusWait})
	case "retry":
		hit = intersect(hit, want[:1])
		n, err = m.s.retry(ctx, owner, want[0], m.rows[want[0]].retries+1, -time.Hour, at, "x")
		m.change(hit, modelRow{status: StatusWait})
		for _, id := range hit {
			m.rows[id].retries++
		}
	case "fail":
		hit = intersect(hit, want[:1])
		n, err = m.s.fail(ctx, owner, want[0], m.rows[want[0]].retries, at, "x")
		m.change(hit, modelRow{status: StatusFail, owner: owner})
	}
	require.NoError(t, err)
	require.EqualValues(t, len(hit), n)
	m.level()
}

// level makes what waits due at one time again, so that claims take it by id.
func (m *machine) level() {
	_, err := m.s.exec(context.Background(), `UPDATE t_event_record SET next_retry_time = '2020-01-01 00:00:00.000' WHERE status = 'WAIT'`)
	require.NoError(m.t, err)
}

func intersect(a, b []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(a), func(id int64) bool { return !slices.Contains(b, id) })
}

func (m *machine) change(ids []int64, to modelRow) {
	for _, id := range ids {
		to.retries, to.reclaims = m.rows[id].retries, m.rows[id].reclaims
		*m.rows[id] = to
	}
}

func (m *machine) renew(t *rapid.T) {
	owner, want, hit := m.anyClaim(t)
	n, err := m.s.renew(context.Background(), owner, want, time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, len(hit), n)
	for _, id := range hit {
		m.rows[id].expired = false
	}
}

func (m *machine) expire(t *rapid.T) {
	owner, want, hit := m.anyClaim(t)
	_, err := m.s.renew(context.Background(), owner, want, -time.Hour)
	require.NoError(t, err)
	for _, id := range hit {
		m.rows[id].expired = true
	}
}

func (m *machine) reclaim(t *rapid.T) {
	var want reclaimResult
	for _, row := range m.rows {
		if row.status != StatusSending || !row.expired {
			continue
		}
		row.reclaims++
		if row.reclaims >= 5 {
			row.status = StatusFail
			want.dead++
			continue
		}
		row.status, row.owner = StatusWait, ""
		want.reclaimed++
	}
	got, err := m.r.reclaimOnce(context.Background())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func (m *machine) check(t *rapid.T) {
	got, err := List(context.Background(), m.s.db, Filter{})
	require.NoError(t, err)
	for _, e := range got {
		want := m.rows[e.ID]
		require.Equal(t, want.status, e.Status)
		require.Equal(t, want.owner, e.ClaimOwner)
		require.Equal(t, want.retries, e.RetryCount)
		require.Equal(t, want.reclaims, e.ReclaimCount)
		require.Equal(t, want.status == StatusSending, e.LeaseUntil != nil)
		require.Equal(t, want.status == StatusSuccess, e.SentAt != nil)
	}
}
