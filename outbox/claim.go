package outbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// ClaimMode is how a relay takes records for itself.
type ClaimMode string

// The two ways to claim. Both may run on one table at the same time.
const (
	// ClaimSkipLocked locks the rows in a short READ COMMITTED transaction and passes over locked ones. MySQL only.
	ClaimSkipLocked ClaimMode = "skip-locked"
	// ClaimConditionalUpdate reads candidates without locks; the affected rows of a conditional UPDATE decide.
	ClaimConditionalUpdate ClaimMode = "conditional-update"
)

// aloneAfter is the number of reclaims after which a record is claimed alone: it may be what kills its relay, and
// it shall not take others with it.
const aloneAfter = 2

// maxInstance keeps claim_owner within its column.
const maxInstance = 64

// newOwner makes the claim_owner of one claim. It is never used again, so that whatever a forgotten goroutine of an
// earlier claim still writes finds no row.
func newOwner(instance string) string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return instance + "-" + hex.EncodeToString(b[:])
}

// claimRequest says what to claim.
type claimRequest struct {
	sink   string
	owner  string
	limit  int
	lease  time.Duration
	avoid  []int64 // not these
	only   []int64 // these and no others, unless empty; claimed in this order
	known  []row   // what only names, as far as it was seen to be due; saves a look where the UPDATE decides
	newest bool    // those that became due last, before those that have waited for longer
}

// claim is a set of records that one owner may send until its lease ends.
type claim struct {
	owner string
	rows  []row
	// since is the local time before the lease was written: the lease ends at since plus its length or later.
	since time.Time
	// found is the number of due records seen, more than rows if some are to be claimed alone or another relay was faster.
	found int
	// full is true when more records may be due.
	full bool
}

// doubtfulClaim is the error of a claim that may have taken effect all the same.
type doubtfulClaim struct {
	owner string
	ids   []int64
	err   error
}

func (e *doubtfulClaim) Error() string { return e.err.Error() }
func (e *doubtfulClaim) Unwrap() error { return e.err }

// takeClaim claims due records. An error that may hide a claim is a *doubtfulClaim.
func (s store) takeClaim(ctx context.Context, mode ClaimMode, q claimRequest) (claim, error) {
	c := claim{owner: q.owner, since: time.Now()}
	var err error
	if mode == ClaimSkipLocked {
		c.rows, c.found, err = s.claimSkipLocked(ctx, q)
	} else {
		c.rows, c.found, err = s.claimConditional(ctx, q)
	}
	if err != nil {
		return claim{}, fmt.Errorf("claim: %w", err)
	}
	c.full = c.found == q.limit
	return c, nil
}

// takeOrdered is takeClaim for a sink that keeps the order of its keys.
func (s store) takeOrdered(ctx context.Context, mode ClaimMode, o *order, q claimRequest) (claim, error) {
	heads, full, err := o.find(ctx, s, q)
	if err != nil {
		return claim{}, fmt.Errorf("claim: %w", err)
	}
	if len(heads) == 0 {
		return claim{owner: q.owner, full: full}, nil
	}
	for _, k := range heads {
		q.only = append(q.only, k.id)
		q.known = append(q.known, row{id: k.id, reclaims: k.reclaims})
	}
	q.limit = len(heads)
	c, err := s.takeClaim(ctx, mode, q)
	c.full = full
	return c, err
}

func (s store) claimSkipLocked(ctx context.Context, q claimRequest) (rows []row, due int, err error) {
	err = s.db.InTx(ctx, func(tx *gorm.DB) error {
		found, err := s.lockDue(tx, q)
		if err != nil {
			return err
		}
		due = len(found)
		if len(q.only) > 0 {
			found = inOrder(found, q.only)
		}
		rows = pick(found)
		if len(rows) == 0 {
			return nil
		}
		n, err := s.claim(tx, q.owner, q.sink, ids(rows), q.lease)
		if err != nil {
			return err
		}
		if n != int64(len(rows)) { // the rows are locked, so this cannot be
			return fmt.Errorf("%d of %d locked records claimed", n, len(rows))
		}
		return nil
	})
	if errors.Is(err, halfbox.ErrUnknown) {
		return nil, 0, &doubtfulClaim{owner: q.owner, ids: ids(rows), err: err}
	}
	if err != nil {
		return nil, 0, err
	}
	return rows, due, nil
}

func (s store) claimConditional(ctx context.Context, q claimRequest) (rows []row, due int, err error) {
	found := q.known
	if found == nil {
		if found, err = s.due(ctx, q); err != nil {
			return nil, 0, err
		}
	}
	wanted := ids(pick(found))
	if len(wanted) == 0 {
		return nil, len(found), nil
	}
	n, err := s.claim(s.db.Write.WithContext(ctx), q.owner, q.sink, wanted, q.lease)
	if err != nil && database.IsLockConflict(err) {
		return nil, 0, err // the database undid it
	}
	if err == nil && n == 0 {
		return nil, len(found), nil // another relay was faster
	}
	if err == nil {
		rows, err = s.claimed(ctx, q.owner, wanted)
	}
	if err != nil {
		return nil, 0, &doubtfulClaim{owner: q.owner, ids: wanted, err: err}
	}
	wanted = wanted[:0]
	for _, r := range found {
		wanted = append(wanted, r.id)
	}
	return inOrder(rows, wanted), len(found), nil
}

// pick leaves out records that are claimed alone, unless one of them is the first: then it is the only one.
func pick(found []row) []row {
	if len(found) > 0 && found[0].reclaims >= aloneAfter {
		return found[:1]
	}
	return slices.DeleteFunc(slices.Clone(found), func(r row) bool { return r.reclaims >= aloneAfter })
}

// inOrder sorts rows the way their ids are ordered.
func inOrder(rows []row, ids []int64) []row {
	at := make(map[int64]int, len(ids))
	for i, id := range ids {
		at[id] = i
	}
	slices.SortFunc(rows, func(a, b row) int { return at[a.id] - at[b.id] })
	return rows
}

// defaultClaimMode is skip-locked where the database can.
func defaultClaimMode(d database.Dialect) ClaimMode {
	if d == database.MySQL {
		return ClaimSkipLocked
	}
	return ClaimConditionalUpdate
}
