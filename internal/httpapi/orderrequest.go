package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/order"
)

// decodeCreateOrder reads the body of POST /api/v1/orders. It goes token by token, because decoding into a struct
// would take USER_ID for user_id, null for zero, and the last of two values. Every error is a *problem.
//
// Only the shape is checked here: which numbers and deliveries are good is the domain's word.
func decodeCreateOrder(body []byte) (order.CreateRequest, error) {
	var req order.CreateRequest
	seen, err := decodeObject(body, func(dec *json.Decoder, name string) error { return decodeField(dec, name, &req) })
	if err != nil {
		return req, err
	}
	for _, name := range []string{"user_id", "amount_cents"} {
		if !seen[name] {
			return req, invalidRequest(name, "is required")
		}
	}
	return req, nil
}

// decodeCancelOrder reads the body of POST /api/v1/orders/{order_no}/cancel, which may be empty.
func decodeCancelOrder(body []byte) (d halfbox.Delivery, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return "", nil
	}
	_, err = decodeObject(body, func(dec *json.Decoder, name string) (err error) {
		if name != "delivery" {
			return unknownField(name)
		}
		d, err = nextDelivery(dec)
		return err
	})
	return d, err
}

// decodeObject reads one JSON object, member by member, and returns the names of its members.
func decodeObject(body []byte, field func(dec *json.Decoder, name string) error) (seen map[string]bool, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, invalidBody("is empty; a JSON object is needed")
	}
	if !json.Valid(body) {
		return nil, invalidBody("is not one JSON document")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, invalidBody("must be a JSON object")
	}
	seen = make(map[string]bool, 3)
	for dec.More() {
		name, err := nextString(dec)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, invalidRequest(name, "is given more than once")
		}
		seen[name] = true
		if err := field(dec, name); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

func decodeField(dec *json.Decoder, name string, req *order.CreateRequest) (err error) {
	switch name {
	case "user_id":
		req.UserID, err = nextInt(dec, name)
	case "amount_cents":
		req.AmountCents, err = nextInt(dec, name)
	case "delivery":
		req.Delivery, err = nextDelivery(dec)
	default:
		err = unknownField(name)
	}
	return err
}

func nextDelivery(dec *json.Decoder) (halfbox.Delivery, error) {
	// An empty string would mean the default to the domain: whoever wants that leaves the field out.
	s, err := nextString(dec)
	if err != nil || s == "" {
		return "", invalidRequest("delivery", "must be a string that is not empty")
	}
	return halfbox.Delivery(s), nil
}

// nextString reads a string, which is what an object's member names are too.
func nextString(dec *json.Decoder) (string, error) {
	t, err := dec.Token()
	if s, ok := t.(string); ok && err == nil {
		return s, nil
	}
	return "", invalidBody("must be a JSON object")
}

// nextInt reads a whole number written as one: neither 1.0 nor 1e3, which other decoders round.
func nextInt(dec *json.Decoder, field string) (int64, error) {
	t, err := dec.Token()
	n, ok := t.(json.Number)
	if err != nil || !ok {
		return 0, invalidRequest(field, "must be a whole number")
	}
	v, err := strconv.ParseInt(n.String(), 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, invalidRequest(field, "is out of range")
	}
	if err != nil {
		return 0, invalidRequest(field, "must be a whole number without fraction or exponent")
	}
	return v, nil
}
