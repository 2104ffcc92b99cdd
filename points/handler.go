package points

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox/internal/database"
)

// Message is a message as the broker delivered it.
type Message struct {
	// MsgID is the broker's UNIQ_KEY; the envelope's id is the same for our own messages.
	MsgID string
	Topic string
	Body  []byte
}

// Outcome is what became of a message.
type Outcome string

// The outcomes; they are also the values of the metric's label.
const (
	Credited         Outcome = "credited"
	Rejected         Outcome = "rejected"
	Reversed         Outcome = "reversed"
	ReversedFirst    Outcome = "reversed_first" // before its EARN, for which a placeholder was written
	EarnVoided       Outcome = "earn_voided"    // an EARN that met such a placeholder
	DuplicateMessage Outcome = "duplicate_msg_id"
	DuplicateOrder   Outcome = "duplicate_order"
	Conflict         Outcome = "conflict"
	DeadLetter       Outcome = "dead_letter"
)

func outcomes() []Outcome {
	return []Outcome{
		Credited, Rejected, Reversed, ReversedFirst, EarnVoided, DuplicateMessage, DuplicateOrder, Conflict, DeadLetter,
	}
}

// HandlerConfig makes a Handler.
type HandlerConfig struct {
	// Consumer is the consumer group's name, under which dead letters are kept.
	Consumer string
	// DB is the points database.
	DB *database.DB
	// Logger defaults to a no-op, Registerer to none.
	Logger     *zap.Logger
	Registerer prometheus.Registerer
	// Hooks are crash points for tests.
	Hooks Hooks
}

// Hooks are called at the named points when they are set.
type Hooks struct {
	BeforeCommit func()
	AfterCommit  func()
}

// Handler turns messages into ledger records. It is safe for concurrent use.
type Handler struct {
	cfg      HandlerConfig
	ledger   *Ledger
	messages *prometheus.CounterVec
}

// NewHandler returns a Handler.
func NewHandler(cfg HandlerConfig) (*Handler, error) {
	if cfg.DB == nil || cfg.Consumer == "" {
		return nil, errors.New("points: HandlerConfig needs DB and Consumer")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	h := &Handler{cfg: cfg, ledger: NewLedger(cfg.DB), messages: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "halfbox_points_messages_total",
		Help: "Messages the points consumer has finished, by outcome. conflict must stay 0.",
	}, []string{"outcome"})}
	for _, o := range outcomes() {
		h.messages.WithLabelValues(string(o))
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(h.messages); err != nil {
			return nil, fmt.Errorf("points: %w", err)
		}
	}
	return h, nil
}

// Handle books a message. A nil error means that the message is finished and may be acknowledged; an error means
// that nothing was booked and the same message is to be handled again.
func (h *Handler) Handle(ctx context.Context, m Message) (Outcome, error) {
	outcome, err := h.handle(ctx, m)
	if err != nil {
		return "", fmt.Errorf("points: message %s: %w", m.MsgID, err)
	}
	h.messages.WithLabelValues(string(outcome)).Inc()
	return outcome, nil
}

func (h *Handler) handle(ctx context.Context, m Message) (Outcome, error) {
	msgID, f, err := decodeFacts(m.Body)
	if err != nil {
		h.cfg.Logger.Error("message can never be handled, moved to the dead letters",
			zap.String("msg_id", m.MsgID), zap.String("topic", m.Topic), zap.Error(err))
		return DeadLetter, bury(ctx, h.cfg.DB, h.cfg.Consumer, m, err.Error())
	}
	var outcome Outcome
	err = h.cfg.DB.InTx(ctx, func(tx *gorm.DB) error {
		outcome, err = book(tx, h.cfg.DB.Dialect, msgID, f) // a repeated transaction may find another state
		if err == nil && h.cfg.Hooks.BeforeCommit != nil {
			h.cfg.Hooks.BeforeCommit()
		}
		return err
	})
	var contradiction *contradictionError
	switch {
	case err == nil:
		if h.cfg.Hooks.AfterCommit != nil {
			h.cfg.Hooks.AfterCommit()
		}
		return outcome, nil
	case ukMsgID().ViolatedBy(err), ukOrderType().ViolatedBy(err):
		return h.duplicate(ctx, m, msgID, f)
	case errors.As(err, &contradiction):
		return h.conflict(ctx, m, f, contradiction.Error())
	}
	return "", err
}

// duplicate tells a repetition of the same facts from a contradiction. It does not rely on which key the database
// named: a plain repetition violates both, and each database names another one first.
func (h *Handler) duplicate(ctx context.Context, m Message, msgID string, f facts) (Outcome, error) {
	rec, err := h.ledger.booked(ctx, msgID, f)
	if err != nil {
		return "", err
	}
	layer, key := DuplicateMessage, "msg_id "+msgID
	if rec.MsgID != msgID {
		layer, key = DuplicateOrder, "order_no "+f.OrderNo
	}
	switch {
	case rec.placeholder():
		return EarnVoided, nil // the placeholder stands for whatever the EARN says
	case rec.FactsHash == f.hash():
		return layer, nil
	}
	return h.conflict(ctx, m, f, fmt.Sprintf("%s was booked before with other facts (record %d)", key, rec.ID))
}

func (h *Handler) conflict(ctx context.Context, m Message, f facts, reason string) (Outcome, error) {
	h.cfg.Logger.Error("conflicting message, moved to the dead letters",
		zap.String("msg_id", m.MsgID), zap.String("order_no", f.OrderNo), zap.String("reason", reason))
	return Conflict, bury(ctx, h.cfg.DB, h.cfg.Consumer, m, reason)
}
