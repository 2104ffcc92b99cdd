package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof" // its init also registers at http.DefaultServeMux, which no listener of ours serves
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const defaultReadyTimeout = 2 * time.Second

// Routes adds routes to a listener. They are behind its token, its recovery and its log.
type Routes = func(gin.IRouter)

// OperatorConfig makes the operator's handler.
type OperatorConfig struct {
	// Gatherer is what /metrics shows. Required.
	Gatherer prometheus.Gatherer
	// Checks are what /readyz asks. Without any the process is ready when it answers.
	Checks []Check
	// ReadyTimeout bounds all checks together. Defaults to 2 s.
	ReadyTimeout time.Duration
	// Token, when set, is needed as "Authorization: Bearer TOKEN" for everything but /healthz and /readyz.
	// See CheckOperatorAddress for when it has to be set.
	Token string
	// Mount adds further routes. A route that exists already is a panic.
	Mount []Routes
	// Logger defaults to a no-op.
	Logger *zap.Logger
}

func (c OperatorConfig) withDefaults() OperatorConfig {
	if c.ReadyTimeout == 0 {
		c.ReadyTimeout = defaultReadyTimeout
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c OperatorConfig) validate() error {
	if c.Gatherer == nil {
		return errors.New("httpapi: OperatorConfig.Gatherer is missing")
	}
	if c.ReadyTimeout < 0 {
		return errors.New("httpapi: OperatorConfig.ReadyTimeout is negative")
	}
	names := make(map[string]bool, len(c.Checks))
	for _, check := range c.Checks {
		if check.Name == "" || check.Ready == nil || names[check.Name] {
			return fmt.Errorf("httpapi: check %q needs a name of its own and Ready", check.Name)
		}
		names[check.Name] = true
	}
	return checkToken(c.Token)
}

// Operator returns the handler of the operator's listener: /healthz, /readyz, /metrics, /debug/pprof/ and what was
// mounted. It fails on a configuration that cannot work.
func Operator(cfg OperatorConfig) (http.Handler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	engine, err := newEngine()
	if err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	log := cfg.Logger.Named("operator")
	engine.Use(requestID, accessLogAt(log, operatorLevel), recovery(log), safeHeaders, limitBody, refuseCrossOrigin())
	if cfg.Token != "" {
		engine.Use(requireToken(cfg.Token, "/healthz", "/readyz"))
	}
	engine.NoRoute(noRoute)
	engine.NoMethod(noMethod)

	get(engine, "/healthz", healthz)
	get(engine, "/readyz", readyz(cfg.Checks, cfg.ReadyTimeout))
	get(engine, "/metrics", gin.WrapH(promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{ErrorLog: zap.NewStdLog(log)})))
	mountPprof(engine)
	for _, mount := range cfg.Mount {
		mount(engine)
	}
	return engine, nil
}

// operatorLevel keeps the probes' and scrapers' steady requests out of the log.
func operatorLevel(c *gin.Context) zapcore.Level {
	if c.Writer.Status() < http.StatusBadRequest && (c.Request.Method == http.MethodGet || c.Request.Method == http.MethodHead) {
		return zapcore.DebugLevel
	}
	return zapcore.InfoLevel
}

func mountPprof(r gin.IRouter) {
	const base = "/debug/pprof/"
	get(r, "/debug/pprof", func(c *gin.Context) { c.Redirect(http.StatusMovedPermanently, base) })
	get(r, base+"*profile", func(c *gin.Context) {
		serve := pprof.Index // also serves the profiles by name: heap, goroutine, allocs, ...
		switch c.Param("profile") {
		case "/cmdline":
			serve = pprof.Cmdline
		case "/profile":
			serve = pprof.Profile
		case "/symbol":
			serve = pprof.Symbol
		case "/trace":
			serve = pprof.Trace
		}
		serve(c.Writer, c.Request)
	})
	r.POST(base+"symbol", gin.WrapF(pprof.Symbol)) // go tool pprof sends addresses in the body
}
