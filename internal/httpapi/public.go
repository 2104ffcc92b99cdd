package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/points"
)

// The defaults of PublicConfig.
const (
	defaultMaxInFlight    = 256
	defaultRequestTimeout = 20 * time.Second
	defaultReadTimeout    = 3 * time.Second
)

// Orders is what the API needs of the order domain; *order.Service satisfies it.
type Orders interface {
	// Create makes an order; replayed says that the idempotency key already had it.
	Create(ctx context.Context, req order.CreateRequest) (o order.Order, replayed bool, err error)
	// Cancel cancels an order, or returns it as it is when it is cancelled already.
	Cancel(ctx context.Context, req order.CancelRequest) (order.Order, error)
	// Get returns an order or order.ErrNotFound.
	Get(ctx context.Context, orderNo string) (order.Order, error)
}

// Points is what the API needs of the points domain; *points.Ledger satisfies it.
type Points interface {
	// Account returns a user's balance and newest records; a user without points has none.
	Account(ctx context.Context, userID int64) (points.Account, error)
}

// PublicConfig makes the public handler.
type PublicConfig struct {
	// Orders and Points are required.
	Orders Orders
	Points Points
	// MaxInFlight limits the orders that are being made or cancelled at the same time. Defaults to 256.
	MaxInFlight int
	// RequestTimeout bounds the work of one request. Defaults to 20 s, which the server's write timeout allows for.
	RequestTimeout time.Duration
	// ReadTimeout bounds a request that only reads. Defaults to 3 s.
	ReadTimeout time.Duration
	// Logger defaults to a no-op, Registerer to none.
	Logger     *zap.Logger
	Registerer prometheus.Registerer
}

func (c PublicConfig) withDefaults() PublicConfig {
	if c.MaxInFlight == 0 {
		c.MaxInFlight = defaultMaxInFlight
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = defaultRequestTimeout
	}
	if c.ReadTimeout == 0 {
		c.ReadTimeout = defaultReadTimeout
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c PublicConfig) validate() error {
	switch {
	case c.Orders == nil || c.Points == nil:
		return errors.New("httpapi: PublicConfig needs Orders and Points")
	case c.MaxInFlight < 0:
		return errors.New("httpapi: PublicConfig.MaxInFlight is negative")
	case c.RequestTimeout < 0:
		return errors.New("httpapi: PublicConfig.RequestTimeout is negative")
	case c.ReadTimeout < 0:
		return errors.New("httpapi: PublicConfig.ReadTimeout is negative")
	}
	return nil
}

// Public returns the handler of the public listener. It fails on a configuration that cannot work and on metrics
// that the Registerer already has.
func Public(cfg PublicConfig) (http.Handler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	engine, err := newEngine()
	if err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	log := cfg.Logger.Named("http")
	// The log and the metrics come before the recovery: they see the answer that a panic got.
	engine.Use(requestID, accessLog(log), m.observe, recovery(log), safeHeaders, limitBody, limitTime(cfg.RequestTimeout))
	engine.NoRoute(noRoute)
	engine.NoMethod(noMethod)

	a := &api{orders: cfg.Orders, points: cfg.Points, log: log, gate: newGate(cfg.MaxInFlight)}
	engine.POST("/api/v1/orders", a.answer(a.createOrder))
	engine.POST("/api/v1/orders/:order_no/cancel", a.answer(a.cancelOrder))
	reads := engine.Group("", limitTime(cfg.ReadTimeout))
	get(reads, "/api/v1/orders/:order_no", a.answer(a.getOrder))
	get(reads, "/api/v1/users/:user_id/points", a.answer(a.getPoints))
	get(engine, "/openapi.yaml", serveSpec)
	return engine, nil
}

// api holds what the handlers share.
type api struct {
	orders Orders
	points Points
	log    *zap.Logger
	gate   gate
}

// answer makes a gin handler of one that returns its failure.
func (a *api) answer(handle func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := handle(c); err != nil {
			fail(c, a.log, err)
		}
	}
}

// get registers a route for GET and for HEAD, whose body net/http leaves out.
func get(r gin.IRouter, path string, h gin.HandlerFunc) {
	r.GET(path, h)
	r.HEAD(path, h)
}
