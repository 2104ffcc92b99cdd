package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
)

// Check is one condition of readiness.
type Check struct {
	// Name is its key in the answer of /readyz, for example "broker".
	Name string
	// Ready returns nil when the condition holds, an error of Degraded when the process works without it, and any
	// other error when it does not. It returns when ctx ends, and is called concurrently. The text of its error is shown
	// to whoever reaches the listener, so it holds no secrets.
	Ready func(ctx context.Context) error
}

// degraded is what Degraded makes.
type degraded struct{ error }

func (d degraded) Unwrap() error { return d.error }

// Degraded marks the reason of a check whose condition does not hold and which the process can do without: it is shown,
// and the process is ready. nil stays nil.
func Degraded(reason error) error {
	if reason == nil {
		return nil
	}
	return degraded{reason}
}

// IsDegraded tells whether an error was made by Degraded.
func IsDegraded(err error) bool {
	var d degraded
	return errors.As(err, &d)
}

// readyBody is the answer of /readyz: per check "ok" or the reason why not.
type readyBody struct {
	Ready  bool              `json:"ready"`
	Checks map[string]string `json:"checks"`
}

// healthz says that the process answers, and nothing of what it depends on: a restart heals no database.
func healthz(c *gin.Context) { c.String(http.StatusOK, "ok") }

func readyz(checks []Check, timeout time.Duration) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), timeout)
		defer cancel()
		reasons, fails := make([]string, len(checks)), make([]bool, len(checks))
		var wg sync.WaitGroup
		for i, check := range checks {
			wg.Go(func() { reasons[i], fails[i] = check.run(ctx) })
		}
		wg.Wait()

		body := readyBody{Ready: true, Checks: make(map[string]string, len(checks))}
		status := http.StatusOK
		for i, check := range checks {
			body.Checks[check.Name] = reasons[i]
			if fails[i] {
				body.Ready, status = false, http.StatusServiceUnavailable
			}
		}
		writeJSON(c, status, body)
	}
}

// run asks the check. It has a goroutine of its own, where a panic would end the process: it becomes a reason.
func (check Check) run(ctx context.Context) (reason string, fails bool) {
	defer func() {
		if v := recover(); v != nil {
			reason, fails = fmt.Sprintf("check panicked: %v", v), true
		}
	}()
	err := check.Ready(ctx)
	switch {
	case err == nil:
		return "ok", false
	case IsDegraded(err):
		return "degraded: " + err.Error(), false
	}
	return "not ready: " + err.Error(), true // never to be mistaken for "ok"
}
