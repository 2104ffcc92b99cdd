package broker

import "errors"

var (
	// ErrStorageInUse is returned by Open when another broker, of this or
	// another process, holds the storage folder.
	ErrStorageInUse = errors.New("storage is in use by another broker")
	// ErrStopped is returned by Start after Stop and by the inspection methods
	// once the storage is closed. A stopped Broker is not restarted: open a new one.
	ErrStopped = errors.New("broker is stopped")
	// ErrStarted is returned by a second Start.
	ErrStarted = errors.New("broker is started already")
)

// rejection is an error that belongs to one request: it is answered with its
// code and leaves every other request of the same write group untouched.
type rejection struct {
	code   int
	remark string
}

func (r *rejection) Error() string { return r.remark }

func reject(code int, remark string) error { return &rejection{code: code, remark: remark} }

// fatal makes an error fail the whole group of writes: for a rejection that
// comes after something was changed already.
func fatal(err error) error {
	var rejected *rejection
	if errors.As(err, &rejected) {
		return errors.New(err.Error())
	}
	return err
}
