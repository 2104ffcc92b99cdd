package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

const (
	// defaultMaxPayload leaves room for properties below RocketMQ's own limit of 4 MiB.
	defaultMaxPayload = 4<<20 - 64<<10
	// cdcGrace is the head start that the binlog relay has over the poller.
	cdcGrace = 60 * time.Second
)

// Errors of a write that meets a record already there; they wrap the driver's error.
var (
	// ErrDuplicateMessage means that this message id was already written for this sink (uk_msg_sink).
	ErrDuplicateMessage = errors.New("outbox: message is already recorded for this sink")
	// ErrDuplicateFact means that this event type and business number were already written for this sink, under
	// another message id (uk_biz_event_sink).
	ErrDuplicateFact = errors.New("outbox: fact is already recorded for this sink")
)

// WriterConfig makes a Writer.
type WriterConfig struct {
	// DB is the database of the local transactions; t_event_record is in it.
	DB *database.DB
	// Sink is the name of the sink that the records are for.
	Sink string
	// Destination is the topic of an event that names none.
	Destination string
	// Ordered says that the sink keeps the order of its keys. The partition key is then the aggregate's id, and an event
	// that names another, or whose version is below 1, is refused. The version must be raised under the lock of the
	// aggregate's row, in the transaction that writes the event: else a higher version may commit first.
	Ordered bool
	// MaxPayload is the largest encoded event in bytes; a larger one is refused before anything is written.
	// Defaults to 4 MiB less 64 KiB.
	MaxPayload int
	// Backlog, when set, refuses writes while the backlog is older than its limit, if that is its policy.
	Backlog *Backlog
	// Nudge is called after a commit and must not block: Relay.Nudge of a relay in the same process. Optional.
	Nudge func()
	// Logger defaults to a no-op.
	Logger *zap.Logger
	// Registerer takes the metrics. Optional. Several writers on one registry need a label each, see
	// prometheus.WrapRegistererWith.
	Registerer prometheus.Registerer
}

func (c WriterConfig) withDefaults() WriterConfig {
	if c.MaxPayload == 0 {
		c.MaxPayload = defaultMaxPayload
	}
	if c.Nudge == nil {
		c.Nudge = func() {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c WriterConfig) validate() error {
	switch {
	case c.DB == nil:
		return errors.New("outbox: WriterConfig.DB is missing")
	case !validSinkName(c.Sink):
		return fmt.Errorf("outbox: WriterConfig.Sink %q is not a name of 1 to %d printable ASCII characters", c.Sink, maxSink)
	case c.Destination == "":
		return errors.New("outbox: WriterConfig.Destination is missing")
	case c.MaxPayload < 0:
		return fmt.Errorf("outbox: WriterConfig.MaxPayload %d is negative", c.MaxPayload)
	}
	return nil
}

// Writer writes event records inside local transactions. It is safe for concurrent use.
type Writer struct {
	cfg     WriterConfig
	store   store
	metrics *writerMetrics
}

// NewWriter returns a Writer.
func NewWriter(cfg WriterConfig) (*Writer, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newWriterMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	cfg.Logger = cfg.Logger.Named("outbox.writer")
	return &Writer{cfg: cfg, store: newStore(cfg.DB), metrics: m}, nil
}

// WithoutBacklog is a writer like w that refuses nothing for the sake of the backlog: for repairs, whose events are
// owed already.
func (w *Writer) WithoutBacklog() *Writer {
	free := *w
	free.cfg.Backlog = nil
	return &free
}

// PublishInTx runs local and writes the event record in one transaction: the event is delivered at least once iff
// that transaction commits. local may run more than once; a lock conflict repeats it under the same Attempt.
//
// The error is nil (committed), wraps halfbox.ErrRolledBack and the cause (nothing happened), or wraps
// halfbox.ErrUnknown (COMMIT's answer was lost; the Receipt then names the attempt that may have committed). Causes
// of this package are ErrBacklog, ErrInvalidEvent, ErrTooLarge, ErrDuplicateMessage and ErrDuplicateFact.
func (w *Writer) PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	if err := w.cfg.Backlog.check(); err != nil {
		err = halfbox.RolledBack(err)
		w.metrics.observe(err)
		return halfbox.Receipt{}, err
	}
	receipt, err := w.attempt(ctx, ev, local)
	if errors.Is(err, halfbox.ErrVoided) && errors.Is(err, halfbox.ErrRolledBack) {
		w.cfg.Logger.Info("attempt was voided, making a new one", zap.String("biz_no", ev.Subject))
		receipt, err = w.attempt(ctx, ev, local)
	}
	w.metrics.observe(err)
	if err == nil || errors.Is(err, halfbox.ErrUnknown) {
		w.cfg.Nudge()
	}
	return receipt, err
}

func (w *Writer) attempt(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	// Encoded before BEGIN: an event that can never be sent costs no transaction, and no lock is held meanwhile.
	r, err := w.record(ev, at)
	if err != nil {
		return halfbox.Receipt{}, halfbox.RolledBack(err)
	}
	err = w.cfg.DB.InTx(ctx, func(tx *gorm.DB) error {
		if err := local(tx, at); err != nil {
			return err
		}
		return w.store.insert(tx, r)
	})
	if err != nil && !errors.Is(err, halfbox.ErrUnknown) {
		return halfbox.Receipt{}, err
	}
	return halfbox.Receipt{Attempt: at}, err
}

// WriteTx writes ev's record inside the caller's transaction tx, for attempt at. The caller commits, and may nudge
// the relay then. On an error the caller rolls back, except for ErrDuplicateMessage and ErrDuplicateFact: these
// leave the transaction usable.
func (w *Writer) WriteTx(tx *gorm.DB, ev halfbox.Event, at halfbox.Attempt) error {
	if err := w.cfg.Backlog.check(); err != nil {
		return err
	}
	r, err := w.record(ev, at)
	if err != nil {
		return err
	}
	return w.store.insert(tx, r)
}

// WriteSQLTx is WriteTx for a transaction of database/sql, or of what embeds one (sqlx). It may come from a pool of
// the caller's own on the same database.
func (w *Writer) WriteSQLTx(ctx context.Context, tx *sql.Tx, ev halfbox.Event, at halfbox.Attempt) error {
	session := w.cfg.DB.Write.Session(&gorm.Session{NewDB: true, Context: ctx})
	session.Statement.ConnPool = tx
	return w.WriteTx(session, ev, at)
}

func (w *Writer) record(ev halfbox.Event, at halfbox.Attempt) (newRecord, error) {
	body, err := halfbox.Encode(ev, at.MsgID)
	if err != nil {
		return newRecord{}, fmt.Errorf("%w: %w", ErrInvalidEvent, err)
	}
	r := newRecord{
		Record: Record{
			MsgID: at.MsgID, EventType: ev.Type, BizNo: ev.Subject, Destination: ev.Destination,
			PartitionKey: ev.PartitionKey, AggregateVersion: ev.AggregateVersion, Payload: body,
			Headers: map[string]string{HeaderContentType: halfbox.ContentType},
		},
		sink: w.cfg.Sink, aggregateID: ev.Subject, delivery: at.Delivery, createdAt: time.Now().UTC(),
	}
	if r.Destination == "" {
		r.Destination = w.cfg.Destination
	}
	if r.PartitionKey == "" {
		r.PartitionKey = r.aggregateID
	}
	if w.cfg.Ordered && (r.PartitionKey != r.aggregateID || r.AggregateVersion < 1) {
		return newRecord{}, fmt.Errorf("%w: sink %s keeps the order of its keys: the partition key must be the subject and the version at least 1, not %q and %d",
			ErrInvalidEvent, r.sink, r.PartitionKey, r.AggregateVersion)
	}
	maps.Copy(r.Headers, ev.Headers) // none of them is one of the writer's own: Encode has refused those
	if ev.TraceParent != "" {
		r.Headers[HeaderTraceParent] = ev.TraceParent
	}
	if at.Delivery == halfbox.DeliveryCDC {
		r.delay = cdcGrace
	}
	if r.headers, err = encodeHeaders(r.Headers); err != nil {
		return newRecord{}, err
	}
	return r, r.validate(w.cfg.MaxPayload)
}
