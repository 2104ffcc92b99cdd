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
	since  string  // only what became due later, unless empty; as the database writes it
	until  string  // only what was due by then, likewise
	newest bool    // those that became due last, before those that have waited for longer; of an ordered sink
	bytes  int     // of payload in one claim, unless its first record has more; 0 is no limit
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
	// cut is true when there were more, but not within the limit of bytes.
	cut bool
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
	take := s.claimConditional
	if mode == ClaimSkipLocked {
		take = s.claimSkipLocked
	}
	if err := take(ctx, q, &c); err != nil {
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

func (s store) claimSkipLocked(ctx context.Context, q claimRequest, c *claim) error {
	err := s.db.InTx(ctx, func(tx *gorm.DB) error {
		found, cut, err := s.lockDue(tx, q)
		if err != nil {
			return err
		}
		c.found, c.cut = len(found)+cut, cut > 0
		if len(q.only) > 0 {
			found = inOrder(found, q.only)
		}
		c.rows = pick(found)
		if len(c.rows) == 0 {
			return nil
		}
		n, err := s.claim(tx, q.owner, q.sink, ids(c.rows), q.lease)
		if err != nil {
			return err
		}
		if n != int64(len(c.rows)) { // the rows are locked, so this cannot be
			return fmt.Errorf("%d of %d locked records claimed", n, len(c.rows))
		}
		return nil
	})
	if errors.Is(err, halfbox.ErrUnknown) {
		return &doubtfulClaim{owner: q.owner, ids: ids(c.rows), err: err}
	}
	return err
}

func (s store) claimConditional(ctx context.Context, q claimRequest, c *claim) error {
	found := q.known
	if found == nil {
		var err error
		if found, err = s.due(ctx, q); err != nil {
			return err
		}
	}
	c.found = len(found)
	wanted := ids(pick(found))
	if len(wanted) == 0 {
		return nil
	}
	n, err := s.claim(s.db.Write.WithContext(ctx), q.owner, q.sink, wanted, q.lease)
	if err != nil && database.IsLockConflict(err) {
		return err // the database undid it
	}
	if err == nil && n == 0 {
		return nil // another relay was faster
	}
	if err == nil {
		err = s.readClaim(ctx, q, wanted, c)
	}
	if err != nil {
		return &doubtfulClaim{owner: q.owner, ids: wanted, err: err}
	}
	order := make([]int64, 0, len(found))
	for _, r := range found {
		order = append(order, r.id)
	}
	c.rows = inOrder(c.rows, order)
	return nil
}

// readClaim reads what the claim of wanted has won, and gives back what is over the limit of bytes.
func (s store) readClaim(ctx context.Context, q claimRequest, wanted []int64, c *claim) error {
	rows, cut, err := s.claimed(ctx, q.owner, wanted, q.bytes)
	if err != nil {
		return err
	}
	if c.rows, c.cut = rows, cut > 0; !c.cut {
		return nil
	}
	read := ids(rows)
	rest := slices.DeleteFunc(slices.Clone(wanted), func(id int64) bool { _, ok := slices.BinarySearch(read, id); return ok })
	_, err = s.release(ctx, q.owner, rest) // of rest, what another relay has won has another owner
	return err
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
