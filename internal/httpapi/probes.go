package httpapi

import (
	"context"
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
	// Ready returns nil when the condition holds. It returns when ctx ends, and is called concurrently. The text
	// of its error is shown to whoever reaches the listener, so it holds no secrets.
	Ready func(ctx context.Context) error
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
		reasons := make([]string, len(checks))
		var wg sync.WaitGroup
		for i, check := range checks {
			wg.Go(func() { reasons[i] = check.run(ctx) })
		}
		wg.Wait()

		body := readyBody{Ready: true, Checks: make(map[string]string, len(checks))}
		status := http.StatusOK
		for i, check := range checks {
			body.Checks[check.Name] = reasons[i]
			if reasons[i] != checkOK {
				body.Ready, status = false, http.StatusServiceUnavailable
			}
		}
		writeJSON(c, status, body)
	}
}

const checkOK = "ok"

// run asks the check. It has a goroutine of its own, where a panic would end the process: it becomes a reason.
func (check Check) run(ctx context.Context) (reason string) {
	defer func() {
		if v := recover(); v != nil {
			reason = fmt.Sprintf("check panicked: %v", v)
		}
	}()
	if err := check.Ready(ctx); err != nil {
		return "not ready: " + err.Error() // never to be mistaken for "ok"
	}
	return checkOK
}
