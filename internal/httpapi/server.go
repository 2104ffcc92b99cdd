package httpapi

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
)

// The limits of a server. writeTimeout runs from the end of the header, so it leaves room for a slow body
// (readTimeout), the work (defaultRequestTimeout) and the answer.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 45 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
)

// NewServer returns a server for one listener, with every timeout set; the caller serves, and shuts it down. It fits
// both listeners: the profiles of net/http/pprof extend the write deadline by the seconds they were asked for.
// ErrorLog is left to the caller.
func NewServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
}

// ReleaseMode silences what gin prints to standard output while routes are registered. The mode belongs to the
// process, so a program calls this once, before Public and Operator; no library does.
func ReleaseMode() { gin.SetMode(gin.ReleaseMode) }

// newEngine is a router without gin's own logger and recovery, that believes no proxy's headers and never redirects.
func newEngine() (*gin.Engine, error) {
	engine := gin.New()
	engine.HandleMethodNotAllowed = true
	engine.RedirectTrailingSlash = false
	engine.ForwardedByClientIP = false
	if err := engine.SetTrustedProxies(nil); err != nil {
		return nil, err
	}
	return engine, nil
}
