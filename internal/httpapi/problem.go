package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/halfbox/halfbox/order"
)

const problemType = "application/problem+json"

// problem is an RFC 9457 problem, and the error by which a handler ends with one. Its texts are made for the
// client: they hold nothing of an internal error.
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Instance  string `json:"instance"`
	RequestID string `json:"request_id"`
	Field     string `json:"field,omitempty"`
	OrderNo   string `json:"order_no,omitempty"`

	// retryAfter in seconds becomes the Retry-After header; 0 sends none.
	retryAfter int
}

// Error is for logs.
func (p *problem) Error() string { return p.Title + ": " + p.Detail }

func newProblem(name string, status int, title, detail string) *problem {
	return &problem{Type: "/problems/" + name, Title: title, Status: status, Detail: detail}
}

// invalidRequest names the member or header that is wrong, and says in what way.
func invalidRequest(field, reason string) *problem {
	p := newProblem("invalid-request", http.StatusBadRequest, "The request is not valid", clip(field)+" "+reason+".")
	p.Field = clip(field)
	return p
}

func unknownField(name string) *problem {
	return invalidRequest(name, "is not a field of this request; names are case-sensitive")
}

func invalidBody(reason string) *problem {
	return newProblem("invalid-request", http.StatusBadRequest, "The request is not valid", "The body "+reason+".")
}

func unauthorized() *problem {
	return newProblem("unauthorized", http.StatusUnauthorized, "The token is missing or wrong",
		"Send the operator's token in the header Authorization: Bearer TOKEN.")
}

func crossOrigin() *problem {
	return newProblem("cross-origin", http.StatusForbidden, "Requests from other sites are refused",
		"A browser sent this request on behalf of another site.")
}

func notFound() *problem {
	return newProblem("not-found", http.StatusNotFound, "Not found", "There is nothing at this address.")
}

func orderNotFound() *problem {
	return newProblem("not-found", http.StatusNotFound, "Not found", "There is no such order.")
}

func methodNotAllowed(allow string) *problem {
	return newProblem("method-not-allowed", http.StatusMethodNotAllowed, "The method is not allowed",
		"This address answers to "+allow+".")
}

func bodyTooLarge(limit int64) *problem {
	return newProblem("body-too-large", http.StatusRequestEntityTooLarge, "The body is too large",
		fmt.Sprintf("The body must have at most %d bytes.", limit))
}

func unsupportedMediaType(detail string) *problem {
	return newProblem("unsupported-media-type", http.StatusUnsupportedMediaType, "The media type is not supported", detail)
}

func keyReused() *problem {
	p := newProblem("idempotency-key-reused", http.StatusUnprocessableEntity, "The Idempotency-Key was used for another request",
		"Use a new key for a new request, or send the first request again unchanged.")
	p.Field = idempotencyHeader
	return p
}

// statusCanceled is nginx's word for a client that left; it is seen in logs and metrics, hardly ever by a client.
const statusCanceled = 499

func requestCanceled() *problem {
	return newProblem("request-canceled", statusCanceled, "The request was canceled", "The client went away before the end.")
}

func internalError() *problem {
	return newProblem("internal", http.StatusInternalServerError, "The request could not be handled",
		"Something is wrong on our side. The details are logged under this request_id.")
}

func overloaded() *problem {
	p := newProblem("overloaded", http.StatusServiceUnavailable, "Too many requests at once",
		"Nothing was changed. Repeat the request a little later.")
	p.retryAfter = 1
	return p
}

// backlogged has a longer pause than overloaded: what is waiting has waited for minutes.
func backlogged() *problem {
	p := newProblem("overloaded", http.StatusServiceUnavailable, "Too many requests at once",
		"Events wait too long for being sent, so no new one is taken. Nothing was changed. Repeat the request later.")
	p.retryAfter = 10
	return p
}

func unavailable() *problem {
	p := newProblem("unavailable", http.StatusServiceUnavailable, "The service cannot do this now",
		"Nothing was changed. The same request may succeed later.")
	p.retryAfter = 5
	return p
}

// outcomeUnknown says how to learn the outcome. orderNo may be empty.
func outcomeUnknown(orderNo string) *problem {
	p := newProblem("outcome-unknown", http.StatusServiceUnavailable, "The outcome is unknown",
		"It was done or it was not. Ask for order_no, or repeat the request: a cancel as it is, an order with the same "+
			"Idempotency-Key; without a key a repetition may be a second order.")
	p.OrderNo = orderNo
	p.retryAfter = 2
	return p
}

func invalidValue(e *order.InvalidError) *problem { return invalidRequest(e.Field, e.Reason) }

// clip keeps what a client named from filling the answer.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// writeProblem answers with p and ends the chain of handlers.
func writeProblem(c *gin.Context, p *problem) {
	p.Instance = c.Request.URL.EscapedPath()
	p.RequestID = requestIDOf(c)
	if p.retryAfter > 0 {
		c.Header("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.Status == http.StatusRequestEntityTooLarge {
		// The rest of the body is still on its way; nobody will read it.
		c.Header("Connection", "close")
	}
	write(c, p.Status, problemType, p)
	c.Abort()
}

func noRoute(c *gin.Context) { writeProblem(c, notFound()) }

// noMethod answers a method that the path does not have. gin has set Allow to those it has; OPTIONS asks for
// exactly that.
func noMethod(c *gin.Context) {
	allow := c.Writer.Header().Get("Allow") + ", " + http.MethodOptions
	c.Header("Allow", allow)
	if c.Request.Method == http.MethodOptions {
		c.Status(http.StatusNoContent)
		c.Writer.WriteHeaderNow()
		return
	}
	writeProblem(c, methodNotAllowed(allow))
}
