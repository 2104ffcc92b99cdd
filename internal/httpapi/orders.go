package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/order"
)

const (
	idempotencyHeader = "Idempotency-Key"
	// maxOrderNo is the width of order_no in the database.
	maxOrderNo = 64
)

// orderBody is an order as the API shows it.
type orderBody struct {
	OrderNo     string            `json:"order_no"`
	UserID      int64             `json:"user_id"`
	AmountCents int64             `json:"amount_cents"`
	Status      order.Status      `json:"status"`
	Delivery    halfbox.Delivery  `json:"delivery"`
	MsgID       string            `json:"msg_id"`
	PointsState order.PointsState `json:"points_state"`
	CreatedAt   timestamp         `json:"created_at"`
}

func newOrderBody(o order.Order) orderBody {
	return orderBody{
		OrderNo: o.OrderNo, UserID: o.UserID, AmountCents: o.AmountCents, Status: o.Status,
		Delivery: o.Delivery, MsgID: o.MsgID, PointsState: o.PointsState, CreatedAt: timestamp(o.CreatedAt),
	}
}

func (a *api) createOrder(c *gin.Context) error {
	req, err := readCreateOrder(c.Request)
	if err != nil {
		return err
	}
	if !a.gate.enter() {
		return overloaded()
	}
	defer a.gate.leave()
	o, replayed, err := a.orders.Create(c.Request.Context(), req)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	if replayed {
		status = http.StatusOK
	}
	c.Header("Location", "/api/v1/orders/"+o.OrderNo)
	writeJSON(c, status, newOrderBody(o))
	return nil
}

func (a *api) getOrder(c *gin.Context) error {
	no := c.Param("order_no")
	if !isOrderNo(no) {
		return order.ErrNotFound // no order has such a number; the database need not see it
	}
	o, err := a.orders.Get(c.Request.Context(), no)
	if err != nil {
		return err
	}
	writeJSON(c, http.StatusOK, newOrderBody(o))
	return nil
}

// cancelOrder answers 200 with the order, also when it was cancelled before.
func (a *api) cancelOrder(c *gin.Context) error {
	req, err := readCancelOrder(c.Request)
	if err != nil {
		return err
	}
	if req.OrderNo = c.Param("order_no"); !isOrderNo(req.OrderNo) {
		return order.ErrNotFound
	}
	if !a.gate.enter() {
		return overloaded()
	}
	defer a.gate.leave()
	o, err := a.orders.Cancel(c.Request.Context(), req)
	if err != nil {
		return err
	}
	writeJSON(c, http.StatusOK, newOrderBody(o))
	return nil
}

// readCancelOrder reads a request whose body is optional; without one it needs no Content-Type.
func readCancelOrder(r *http.Request) (req order.CancelRequest, err error) {
	body, err := readBody(r)
	if err != nil {
		return req, err
	}
	if len(body) > 0 || r.Header.Get("Content-Type") != "" {
		if err := checkContent(r.Header); err != nil {
			return req, err
		}
	}
	req.Delivery, err = decodeCancelOrder(body)
	return req, err
}

func isOrderNo(s string) bool {
	return s != "" && len(s) <= maxOrderNo && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x21 || r > 0x7e })
}

// readCreateOrder reads a request up to what the domain has to say about it.
func readCreateOrder(r *http.Request) (order.CreateRequest, error) {
	if err := checkContent(r.Header); err != nil {
		return order.CreateRequest{}, err
	}
	key, err := idempotencyKey(r.Header)
	if err != nil {
		return order.CreateRequest{}, err
	}
	body, err := readBody(r)
	if err != nil {
		return order.CreateRequest{}, err
	}
	req, err := decodeCreateOrder(body)
	req.IdempotencyKey = key
	return req, err
}

// checkContent wants plain JSON in UTF-8.
func checkContent(h http.Header) error {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return unsupportedMediaType("The body must not be compressed.")
	}
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || media != "application/json" || len(h.Values("Content-Type")) > 1 {
		return unsupportedMediaType("The Content-Type must be application/json.")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return unsupportedMediaType("The charset must be utf-8.")
	}
	return nil
}

// idempotencyKey returns the request's key, empty when it has none. Two keys would promise two things, and an empty
// one is a client's mistake that would cost it the protection it asked for.
func idempotencyKey(h http.Header) (string, error) {
	switch keys := h.Values(idempotencyHeader); {
	case len(keys) == 0:
		return "", nil
	case len(keys) > 1:
		return "", invalidRequest(idempotencyHeader, "must be given once")
	case keys[0] == "":
		return "", invalidRequest(idempotencyHeader, "must not be empty")
	default:
		return keys[0], nil
	}
}

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &tooLarge):
		return nil, bodyTooLarge(tooLarge.Limit)
	}
	return nil, invalidBody("could not be read to its end")
}
