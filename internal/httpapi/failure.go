package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

// failure turns an error into the problem that the client sees; the table of the package's documentation. ctx is the
// request's.
//
// The order matters: an outcome that is unknown stays unknown whatever caused it, and a client that left is the
// reason for whatever else went wrong after that.
func failure(ctx context.Context, err error) *problem {
	var (
		p       *problem
		invalid *order.InvalidError
		unknown *order.UnknownError
	)
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &unknown):
		return outcomeUnknown(unknown.OrderNo)
	case errors.Is(err, halfbox.ErrUnknown):
		return outcomeUnknown("")
	case errors.As(err, &invalid):
		return invalidValue(invalid)
	case errors.Is(err, order.ErrKeyReused):
		return keyReused()
	case errors.Is(err, order.ErrNotFound):
		return orderNotFound()
	case errors.Is(err, outbox.ErrBacklog):
		return backlogged()
	case errors.Is(ctx.Err(), context.Canceled):
		return requestCanceled()
	case passes(ctx, err):
		return unavailable()
	}
	return internalError()
}

// passes reports whether err is of the kind that goes away by itself. It left nothing behind: what could have is
// ErrUnknown.
func passes(ctx context.Context, err error) bool {
	return errors.Is(err, halfbox.ErrUnavailable) || errors.Is(err, order.ErrBusy) ||
		errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil ||
		database.IsTransient(err)
}

// fail answers with the problem of err. The log gets what the client must not see, and only what was not its doing.
func fail(c *gin.Context, log *zap.Logger, err error) {
	p := failure(c.Request.Context(), err)
	log = log.With(zap.String("request_id", requestIDOf(c)), zap.String("method", c.Request.Method),
		zap.String("path", c.Request.URL.Path))
	var own *problem
	switch {
	case errors.As(err, &own):
		// Made here: the access log says all there is.
	case p.Status == http.StatusInternalServerError:
		log.Error("request failed", zap.Error(err))
	case p.Status == http.StatusServiceUnavailable:
		log.Warn("request not served", zap.String("problem", p.Type), zap.String("order_no", p.OrderNo), zap.Error(err))
	case p.Status == statusCanceled:
		log.Debug("client went away", zap.Error(err))
	}
	writeProblem(c, p)
}
