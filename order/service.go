package order

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
)

// Publisher is what this domain needs of a delivery strategy.
type Publisher interface {
	// PublishInTx runs local in one database transaction and delivers ev at least once iff that transaction commits.
	// The error is nil (committed), wraps halfbox.ErrRolledBack (nothing happened) or wraps halfbox.ErrUnknown.
	PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error)
}

// Config makes a Service.
type Config struct {
	// DB is the order database.
	DB *database.DB
	// Publishers are the strategies a request can choose from.
	Publishers map[halfbox.Delivery]Publisher
	// Default is the strategy of a request that names none. It must be in Publishers.
	Default halfbox.Delivery
}

// lookupTimeout bounds the look for an order before it is made or cancelled: a database that says nothing must not hold every request that
// the API lets in at once.
const lookupTimeout = 3 * time.Second

// Service is the order domain's entry. It is safe for concurrent use.
type Service struct {
	db         *database.DB
	publishers map[halfbox.Delivery]Publisher
	def        halfbox.Delivery
}

// NewService returns a Service.
func NewService(cfg Config) (*Service, error) {
	if cfg.DB == nil {
		return nil, errors.New("order: Config.DB is missing")
	}
	if cfg.Publishers[cfg.Default] == nil {
		return nil, fmt.Errorf("order: Config.Default %q has no publisher", cfg.Default)
	}
	return &Service{db: cfg.DB, publishers: maps.Clone(cfg.Publishers), def: cfg.Default}, nil
}

// Deliveries lists the strategies a request can choose from, sorted.
func (s *Service) Deliveries() []halfbox.Delivery { return slices.Sorted(maps.Keys(s.publishers)) }

// Create makes an order and sends order.created if and only if the order is committed. replayed is true when the
// request's idempotency key already had its order, which is returned then.
//
// Errors: *InvalidError, ErrKeyReused, *UnknownError (the order exists or it does not), or one that wraps
// halfbox.ErrRolledBack (it does not).
func (s *Service) Create(ctx context.Context, req CreateRequest) (o Order, replayed bool, err error) {
	if err := s.validate(req); err != nil {
		return Order{}, false, err
	}
	if req.IdempotencyKey != "" {
		// Looking first spares the half message of a plain repetition; uk_idempotency decides the races.
		o, err := s.replay(ctx, req)
		if !errors.Is(err, ErrNotFound) {
			return o, err == nil, err
		}
	}
	o, err = s.create(ctx, req)
	if errors.Is(err, errKeyTaken) && errors.Is(err, halfbox.ErrRolledBack) {
		o, err := s.replay(ctx, req)
		return o, err == nil, err
	}
	return o, false, err
}

func (s *Service) create(ctx context.Context, req CreateRequest) (Order, error) {
	r, err := newRow(req)
	if err != nil {
		return Order{}, err
	}
	ev, err := event(EventCreated, r.order())
	if err != nil {
		return Order{}, err
	}
	receipt, err := s.publisher(req.Delivery).PublishInTx(ctx, ev, func(tx *gorm.DB, at halfbox.Attempt) error {
		attempt := r
		attempt.MsgID, attempt.Delivery = at.MsgID, at.Delivery
		return insert(tx, attempt)
	})
	if errors.Is(err, halfbox.ErrUnknown) {
		return Order{}, &UnknownError{OrderNo: r.OrderNo, Err: err}
	}
	if err != nil {
		return Order{}, fmt.Errorf("create order: %w", err)
	}
	r.MsgID, r.Delivery = receipt.MsgID, receipt.Delivery
	return r.order(), nil
}

// publisher is the strategy of a request.
func (s *Service) publisher(d halfbox.Delivery) Publisher {
	if d == "" {
		d = s.def
	}
	return s.publishers[d]
}

// replay returns the order that the request's key made before; ErrNotFound when there is none.
func (s *Service) replay(ctx context.Context, req CreateRequest) (Order, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	r, err := byKey(ctx, s.db.Read, req.UserID, req.IdempotencyKey)
	if err != nil {
		return Order{}, err
	}
	if r.RequestHash != req.hash() {
		return Order{}, ErrKeyReused
	}
	return r.order(), nil
}

// Get returns an order; ErrNotFound when there is none.
func (s *Service) Get(ctx context.Context, orderNo string) (Order, error) {
	r, err := byNo(ctx, s.db.Read, orderNo)
	if err != nil {
		return Order{}, err
	}
	return r.order(), nil
}

func newRow(req CreateRequest) (row, error) {
	no, err := newOrderNo()
	if err != nil {
		return row{}, err
	}
	// Microseconds are what MySQL keeps: the answer to Create equals that of a later Get.
	now := time.Now().UTC().Truncate(time.Microsecond)
	r := row{
		OrderNo: no, UserID: req.UserID, AmountCents: req.AmountCents, Status: StatusCreated, Version: 1,
		RequestHash: req.hash(), PointsState: PointsPending, CreatedAt: now, UpdatedAt: now,
	}
	if req.IdempotencyKey != "" {
		r.IdempotencyKey = &req.IdempotencyKey
	}
	return r, nil
}
