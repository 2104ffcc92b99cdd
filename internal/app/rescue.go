package app

import (
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/outbox"
)

// openRescue builds what decides the half messages that the broker has given up on.
func (a *App) openRescue() error {
	if !a.has(RoleRelay) {
		return nil
	}
	writer, err := a.openWriter()
	if err != nil {
		return err
	}
	checker, err := a.openChecker()
	if err != nil {
		return err
	}
	rescuer, err := checkback.NewRescuer(checkback.RescueConfig{
		DB: a.orderDB, Checker: checker, Records: records{writer.WithoutBacklog()}, Nudge: a.relay.Nudge,
		NameServers: a.nameServers, AccessKey: a.cfg.RocketMQ.AccessKey, SecretKey: string(a.cfg.RocketMQ.SecretKey),
		Group: a.cfg.RocketMQ.TransactionGroup, PullGroup: a.cfg.Rescue.Group,
		Poll: a.cfg.Rescue.Poll, Lease: a.cfg.Rescue.Lease,
		Logger: a.log, Registerer: a.reg,
	})
	if err != nil {
		return err
	}
	a.onStop("rescue", rescuer.Stop)
	a.onStart("rescue", rescuer.Start)
	return nil
}

// records lets the rescue write event records.
type records struct{ writer *outbox.Writer }

var _ checkback.RecordWriter = records{}

// WriteTx says in checkback's words what became of the record.
func (r records) WriteTx(tx *gorm.DB, ev halfbox.Event, at halfbox.Attempt) error {
	err := r.writer.WriteTx(tx, ev, at)
	switch {
	case errors.Is(err, outbox.ErrDuplicateMessage):
		return fmt.Errorf("%w: %w", checkback.ErrRecorded, err)
	case errors.Is(err, outbox.ErrDuplicateFact), errors.Is(err, outbox.ErrInvalidEvent), errors.Is(err, outbox.ErrTooLarge):
		return fmt.Errorf("%w: %w", checkback.ErrUnrecordable, err)
	}
	return err
}
