// Package progress keeps how far a reader of something outside the database has come, in the table t_progress, and
// lets one process at a time read on.
//
// A reader is known by a name and holds it under a lease, by the database's clock. The position advances in the
// transaction that stores what was read, and only for the owner of the lease and from the position it knows: a
// reader that was frozen past its lease changes nothing when it wakes.
//
// All functions are safe for concurrent use.
package progress

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

// MaxName is the longest name in characters, which must be ASCII.
const MaxName = 255

// ErrLost means that another reader holds the name, or has advanced it. The transaction must be rolled back.
var ErrLost = errors.New("progress: another reader has taken over")

// Store reads and writes t_progress.
type Store struct{ db *database.DB }

// NewStore returns the store of a database.
func NewStore(db *database.DB) Store { return Store{db} }

// Position returns where the reader is; empty when it has not begun.
func (s Store) Position(ctx context.Context, name string) (string, error) {
	return s.position(s.db.Read.WithContext(ctx), name)
}

func (s Store) position(db *gorm.DB, name string) (string, error) {
	var found []string
	if err := db.Raw("SELECT position FROM t_progress WHERE name = ?", name).Scan(&found).Error; err != nil {
		return "", fmt.Errorf("read progress of %s: %w", name, err)
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0], nil
}

// Claim takes the name for owner, or renews owner's lease, and returns the position; held tells that another owner's
// lease runs.
func (s Store) Claim(ctx context.Context, name, owner string, lease time.Duration) (position string, held bool, err error) {
	begin := "INSERT INTO t_progress (name, position) VALUES (?, '') ON CONFLICT (name) DO NOTHING"
	if s.db.Dialect == database.MySQL {
		begin = "INSERT INTO t_progress (name, position) VALUES (?, '') ON DUPLICATE KEY UPDATE name = name"
	}
	now, later := s.db.Dialect.Now(), s.db.Dialect.NowPlus()
	err = s.db.InTx(ctx, func(tx *gorm.DB) error {
		if err := tx.Exec(begin, name).Error; err != nil {
			return err
		}
		claim := tx.Exec("UPDATE t_progress SET claim_owner = ?, lease_until = "+later+
			" WHERE name = ? AND (claim_owner = ? OR lease_until IS NULL OR lease_until <= "+now+")",
			owner, s.db.Dialect.Offset(lease), name, owner)
		if claim.Error != nil {
			return claim.Error
		}
		if held = claim.RowsAffected == 0; held {
			return nil
		}
		position, err = s.position(tx, name)
		return err
	})
	if err != nil {
		return "", false, fmt.Errorf("claim %s: %w", name, err)
	}
	return position, held, nil
}

// Advance moves the position inside tx, renews owner's lease, and returns ErrLost unless owner holds the name at the
// position from.
func (s Store) Advance(tx *gorm.DB, name, owner, from, to string, lease time.Duration) error {
	moved := tx.Exec("UPDATE t_progress SET position = ?, lease_until = "+s.db.Dialect.NowPlus()+
		" WHERE name = ? AND claim_owner = ? AND position = ?",
		to, s.db.Dialect.Offset(lease), name, owner, from)
	switch {
	case moved.Error != nil:
		return fmt.Errorf("advance %s: %w", name, moved.Error)
	case moved.RowsAffected != 1:
		return fmt.Errorf("%w: %s at %s", ErrLost, name, from)
	}
	return nil
}

// Release ends owner's lease, so that another reader need not wait for its end. It is not an error to hold none.
func (s Store) Release(ctx context.Context, name, owner string) error {
	err := s.db.Write.WithContext(ctx).Exec(
		"UPDATE t_progress SET claim_owner = NULL, lease_until = NULL WHERE name = ? AND claim_owner = ?", name, owner).Error
	if err != nil {
		return fmt.Errorf("release %s: %w", name, err)
	}
	return nil
}
