package httpapi

import (
	"crypto/rand"
	"errors"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const (
	requestIDHeader = "X-Request-Id"
	requestIDKey    = "httpapi.request_id"
	maxRequestID    = 128
)

// requestID keeps the client's request id when it is harmless, makes one otherwise, and sends it back.
func requestID(c *gin.Context) {
	id := c.GetHeader(requestIDHeader)
	if !isRequestID(id) {
		id = rand.Text()
	}
	c.Set(requestIDKey, id)
	c.Header(requestIDHeader, id)
	c.Next()
}

func requestIDOf(c *gin.Context) string { return c.GetString(requestIDKey) }

func isRequestID(s string) bool {
	if s == "" || len(s) > maxRequestID {
		return false
	}
	for _, b := range []byte(s) {
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '-', b == '_', b == '.', b == ':':
		default:
			return false
		}
	}
	return true
}

// accessLog writes one line per request.
func accessLog(log *zap.Logger) gin.HandlerFunc {
	return accessLogAt(log, func(*gin.Context) zapcore.Level { return zapcore.InfoLevel })
}

func accessLogAt(log *zap.Logger, level func(*gin.Context) zapcore.Level) gin.HandlerFunc {
	return func(c *gin.Context) {
		start := time.Now()
		defer func() { // also when the connection is torn down by a panic
			entry := log.Check(level(c), "request")
			if entry == nil {
				return
			}
			entry.Write(
				zap.String("request_id", requestIDOf(c)),
				zap.String("method", c.Request.Method), zap.String("path", c.Request.URL.Path),
				zap.String("route", c.FullPath()), zap.Int("status", c.Writer.Status()),
				zap.Int("bytes", max(c.Writer.Size(), 0)), zap.Duration("duration", time.Since(start)),
				zap.String("remote", c.ClientIP()))
		}()
		c.Next()
	}
}

// recovery answers a panic with a fixed text and logs its stack. When the answer has begun already, the connection
// is torn down instead: half an answer must not look whole.
func recovery(log *zap.Logger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(http.ErrAbortHandler)
			}
			log.Error("handler panicked", zap.String("request_id", requestIDOf(c)), zap.String("method", c.Request.Method),
				zap.String("path", c.Request.URL.Path), zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
			if c.Writer.Written() {
				panic(http.ErrAbortHandler)
			}
			writeProblem(c, internalError())
		}()
		c.Next()
	}
}

// safeHeaders keeps answers, which change, out of caches, and browsers from guessing types.
func safeHeaders(c *gin.Context) {
	c.Header("Cache-Control", "no-store")
	c.Header("X-Content-Type-Options", "nosniff")
	c.Next()
}

// refuseCrossOrigin stops what another site makes an operator's browser send: a listener on loopback has no token
// that would. Programs other than browsers are not concerned.
func refuseCrossOrigin() gin.HandlerFunc {
	protection := http.NewCrossOriginProtection()
	return func(c *gin.Context) {
		if protection.Check(c.Request) != nil {
			writeProblem(c, crossOrigin())
			return
		}
		c.Next()
	}
}
