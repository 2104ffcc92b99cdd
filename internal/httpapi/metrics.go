package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of one handler.
type metrics struct {
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "halfbox_http_request_duration_seconds",
			Help:    "Time to answer a request of the public API, by route, method and class of the status.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20},
		}, []string{"route", "method", "status"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "halfbox_http_requests_in_flight",
			Help: "Requests of the public API that are being answered.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.duration, m.inFlight} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(c *gin.Context) {
	start := time.Now()
	m.inFlight.Inc()
	defer func() {
		m.inFlight.Dec()
		class := strconv.Itoa(c.Writer.Status()/100) + "xx"
		m.duration.WithLabelValues(routeLabel(c), methodLabel(c.Request.Method), class).Observe(time.Since(start).Seconds())
	}()
	c.Next()
}

// routeLabel is the route's pattern: an address would make one series per order, and whatever a scanner tries.
func routeLabel(c *gin.Context) string {
	if route := c.FullPath(); route != "" {
		return route
	}
	return "unmatched"
}

func methodLabel(method string) string {
	known := []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}
	if slices.Contains(known, method) {
		return method
	}
	return "other"
}
