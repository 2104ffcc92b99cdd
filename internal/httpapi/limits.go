package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// maxBody is the most a request's body may have, in bytes.
const maxBody = 64 << 10

// limitBody makes reading beyond maxBody fail with *http.MaxBytesError.
func limitBody(c *gin.Context) {
	c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, maxBody)
	c.Next()
}

// limitTime ends the request's context after d.
func limitTime(d time.Duration) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), d)
		defer cancel()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	}
}

// gate lets a fixed number in at the same time and turns the others away: waiting here would only hide the overload
// until the client's timeout.
type gate chan struct{}

func newGate(n int) gate { return make(gate, n) }

// enter reports whether there was room; if so, leave must follow.
func (g gate) enter() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) leave() { <-g }
