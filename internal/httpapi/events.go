package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/eventview"
	"github.com/halfbox/halfbox/outbox"
)

// Events is what the operator's endpoints need of the outbox; see package outbox.
type Events interface {
	Stats(ctx context.Context) (outbox.Snapshot, error)
	Search(ctx context.Context, f outbox.Filter) (outbox.Page, error)
	// Get returns the records of a message, or outbox.ErrNotFound.
	Get(ctx context.Context, msgID string) ([]outbox.Entry, error)
	// BlockedKeys returns the keys of a sink that have dead letters; the sink may be empty for the configured one.
	BlockedKeys(ctx context.Context, sink, after string, limit int) ([]outbox.BlockedKey, error)
	Redrive(ctx context.Context, o outbox.Operation) (outbox.OperationResult, error)
	PurgeDead(ctx context.Context, o outbox.Operation) (outbox.OperationResult, error)
}

// EventRoutes are the operator's endpoints for event records:
//
//	GET  /admin/v1/stats             counts by sink and state, age of the oldest unsent record
//	GET  /admin/v1/events            ?sink= status= type= biz_no= key= error= older_than= newer_than= limit= (100, at
//	                                 most 1000) after= (next of the answer before)
//	GET  /admin/v1/events/blocked    ?sink= limit= after= : keys of an ordered sink that have a dead letter, and how
//	                                 many records wait behind it
//	GET  /admin/v1/events/{msg_id}   one message whole, its payload included
//	POST /admin/v1/events/redrive    dead letters are sent again, see deadletters.go
//	POST /admin/v1/events/purge      dead letters are deleted
func EventRoutes(events Events, log *zap.Logger) Routes {
	answer := func(handle func(*gin.Context) (any, error)) gin.HandlerFunc {
		return func(c *gin.Context) {
			body, err := handle(c)
			switch {
			case errors.Is(err, outbox.ErrNotFound):
				err = newProblem("event-not-found", http.StatusNotFound, "There is no such event record", "No event record has this msg_id.")
			case errors.Is(err, outbox.ErrBadCursor):
				err = invalidRequest("after", "is not the next of an answer to the same filter")
			case errors.Is(err, outbox.ErrBadOperation):
				err = invalidRequest("body", "does not say what to do: "+err.Error())
			}
			if err != nil {
				fail(c, log, err)
				return
			}
			writeJSON(c, http.StatusOK, body)
		}
	}
	return func(r gin.IRouter) {
		get(r, "/admin/v1/stats", answer(func(c *gin.Context) (any, error) {
			s, err := events.Stats(c.Request.Context())
			return eventview.OfStats(s), err
		}))
		get(r, "/admin/v1/events", answer(func(c *gin.Context) (any, error) {
			f, err := eventFilter(c)
			if err != nil {
				return nil, err
			}
			page, err := events.Search(c.Request.Context(), f)
			return eventview.OfPage(page), err
		}))
		get(r, "/admin/v1/events/blocked", answer(func(c *gin.Context) (any, error) {
			if err := checkQuery(c, "sink", "limit", "after"); err != nil {
				return nil, err
			}
			limit, err := readLimit(c)
			if err != nil {
				return nil, err
			}
			keys, err := events.BlockedKeys(c.Request.Context(), c.Query("sink"), c.Query("after"), limit)
			return eventview.OfBlocked(keys, limit), err
		}))
		get(r, "/admin/v1/events/:msg_id", answer(func(c *gin.Context) (any, error) {
			entries, err := events.Get(c.Request.Context(), c.Param("msg_id"))
			return gin.H{"events": eventview.All(entries)}, err
		}))
		r.POST("/admin/v1/events/redrive", answer(func(c *gin.Context) (any, error) { return operate(c, events.Redrive, false) }))
		r.POST("/admin/v1/events/purge", answer(func(c *gin.Context) (any, error) { return operate(c, events.PurgeDead, true) }))
	}
}

// checkQuery refuses a parameter that is not known: a filter that is ignored would show more than was asked for.
func checkQuery(c *gin.Context, known ...string) error {
	for name, values := range c.Request.URL.Query() {
		if len(values) > 1 {
			return invalidRequest(name, "is given more than once")
		}
		if !slices.Contains(known, name) {
			return invalidRequest(name, fmt.Sprintf("is not a parameter, there are %v", known))
		}
	}
	return nil
}

// readLimit reads how many a list shows.
func readLimit(c *gin.Context) (int, error) {
	text := c.Query("limit")
	if text == "" {
		return 100, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1000 {
		return 0, invalidRequest("limit", "must be a number from 1 to 1000")
	}
	return n, nil
}

// eventFilter reads the query.
func eventFilter(c *gin.Context) (outbox.Filter, error) {
	if err := checkQuery(c, "sink", "status", "type", "biz_no", "key", "error", "older_than", "newer_than", "limit", "after"); err != nil {
		return outbox.Filter{}, err
	}
	f := outbox.Filter{
		Sink: c.Query("sink"), Status: outbox.Status(c.Query("status")), EventType: c.Query("type"), BizNo: c.Query("biz_no"),
		Key: c.Query("key"), Error: c.Query("error"), After: c.Query("after"),
	}
	if f.Status != "" && !slices.Contains(outbox.Statuses(), f.Status) {
		return outbox.Filter{}, invalidRequest("status", fmt.Sprintf("must be one of %v", outbox.Statuses()))
	}
	for name, into := range map[string]*time.Duration{"older_than": &f.OlderThan, "newer_than": &f.NewerThan} {
		if err := readDuration(name, c.Query(name), into); err != nil {
			return outbox.Filter{}, err
		}
	}
	var err error
	f.Limit, err = readLimit(c)
	return f, err
}

func readDuration(name, text string, into *time.Duration) error {
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return invalidRequest(name, "must be a duration such as 30s, 15m or 24h")
	}
	*into = d
	return nil
}
