package compare

import (
	"context"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

// Naive is the name of the control.
const Naive = "naive"

// naiveTries is how often it sends: as often as RocketMQ's clients do by default.
const naiveTries = 3

// naive commits and then sends, as is often done. Nothing is rigged: it loses an event when the process dies between
// the two, when the broker is away for longer than its tries, and when COMMIT's answer is lost. It exists for the
// comparison and is not for use.
type naive struct{ Parts }

func openNaive(p Parts) order.Publisher { return naive{p} }

// PublishInTx runs local in one transaction and sends ev afterwards. A send that fails is logged: the order stands, and
// the caller cannot undo it.
func (n naive) PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	at, err := halfbox.NewAttempt(Naive)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	body, err := halfbox.Encode(ev, at.MsgID)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	if err := n.DB.InTx(ctx, func(tx *gorm.DB) error { return local(tx, at) }); err != nil {
		return halfbox.Receipt{}, err
	}
	record := outbox.Record{
		MsgID: at.MsgID, EventType: ev.Type, BizNo: ev.Subject, Destination: n.Topic, PartitionKey: ev.PartitionKey,
		AggregateVersion: ev.AggregateVersion, Payload: body,
	}
	for range naiveTries {
		sending, cancel := context.WithTimeout(ctx, 3*time.Second)
		err = n.Sink.Send(sending, []outbox.Record{record})
		cancel()
		if err == nil {
			break
		}
	}
	if err != nil {
		n.Logger.Warn("order is committed and its event is not sent", zap.String("order_no", ev.Subject), zap.Error(err))
	}
	return halfbox.Receipt{Attempt: at}, nil
}
