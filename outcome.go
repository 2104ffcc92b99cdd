package halfbox

import (
	"errors"
	"fmt"
)

// PublishInTx has three outcomes. A nil error means committed; the others are these two.
var (
	// ErrRolledBack means that nothing happened: no row was written and no message will be delivered.
	// The error that wraps it also wraps the cause.
	ErrRolledBack = errors.New("halfbox: rolled back, nothing happened")
	// ErrUnknown means that the answer to COMMIT was lost: ask the database again by the business key.
	// If the transaction did commit, its message will be delivered.
	ErrUnknown = errors.New("halfbox: outcome unknown, ask again by key")
)

// Causes that wrap together with ErrRolledBack.
var (
	// ErrUnavailable means that the message could not be stored anywhere, so the transaction was not begun.
	// The same call may succeed later.
	ErrUnavailable = errors.New("halfbox: no place to store the message")
	// ErrVoided is returned by a local transaction whose row meets the tombstone of its own attempt: the broker
	// asked before it committed and was told ROLLBACK. The publisher makes one new attempt.
	ErrVoided = errors.New("halfbox: attempt was voided by a check-back")
)

// RolledBack wraps cause so that errors.Is finds both ErrRolledBack and cause.
func RolledBack(cause error) error { return fmt.Errorf("%w: %w", ErrRolledBack, cause) }

// Unknown wraps cause so that errors.Is finds both ErrUnknown and cause.
func Unknown(cause error) error { return fmt.Errorf("%w: %w", ErrUnknown, cause) }
