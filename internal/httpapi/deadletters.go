package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/halfbox/halfbox/internal/eventview"
	"github.com/halfbox/halfbox/outbox"
)

const (
	// defaultOperationLimit and maxOperationLimit bound one request; the answer says whether there is more.
	defaultOperationLimit = 1000
	maxOperationLimit     = 10_000
	// maxOperationTime is how long a request may be paced for: the connection is not kept longer.
	maxOperationTime = 20 * time.Second
)

// operationBody asks for dead letters to be redriven or purged:
//
//	{"msg_id":"...", "sink":"rocketmq", "reason":"topic was made"}
//	{"all":true, "error":"no such topic", "limit":500, "rate":50, "reason":"topic was made", "dry_run":true}
//
// Without any filter all must be true, so that a misspelt or forgotten one does not mean everything. A purge needs
// "confirm": true besides. actor defaults to the address that the request came from.
type operationBody struct {
	MsgID     string  `json:"msg_id"`
	Sink      string  `json:"sink"`
	Type      string  `json:"type"`
	BizNo     string  `json:"biz_no"`
	Key       string  `json:"key"`
	Error     string  `json:"error"`
	OlderThan string  `json:"older_than"`
	NewerThan string  `json:"newer_than"`
	All       bool    `json:"all"`
	Limit     int     `json:"limit"`
	Rate      float64 `json:"rate"`
	DryRun    bool    `json:"dry_run"`
	Confirm   bool    `json:"confirm"`
	Actor     string  `json:"actor"`
	Reason    string  `json:"reason"`
}

// operate carries out one request.
func operate(c *gin.Context, do func(context.Context, outbox.Operation) (outbox.OperationResult, error), confirm bool) (any, error) {
	body, err := readOperation(c)
	if err != nil {
		return nil, err
	}
	op, err := body.operation()
	if err != nil {
		return nil, err
	}
	if confirm && !body.Confirm && !body.DryRun {
		return nil, invalidRequest("confirm", "must be true: what is purged is gone")
	}
	if op.Actor == "" {
		op.Actor = "admin api, " + c.ClientIP()
	}
	res, err := do(c.Request.Context(), op)
	return eventview.OfOperation(res, op.DryRun), err
}

func readOperation(c *gin.Context) (b operationBody, err error) {
	if err := checkContent(c.Request.Header); err != nil {
		return b, err
	}
	text, err := readBody(c.Request)
	if err != nil {
		return b, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b); err != nil {
		return b, invalidBody("is not what this endpoint takes: " + clip(err.Error()))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return b, invalidBody("is not one JSON document")
	}
	return b, nil
}

func (b operationBody) operation() (outbox.Operation, error) {
	f := outbox.Filter{Sink: b.Sink, EventType: b.Type, BizNo: b.BizNo, MsgID: b.MsgID, Key: b.Key, Error: b.Error}
	if err := readDuration("older_than", b.OlderThan, &f.OlderThan); err != nil {
		return outbox.Operation{}, err
	}
	if err := readDuration("newer_than", b.NewerThan, &f.NewerThan); err != nil {
		return outbox.Operation{}, err
	}
	op := outbox.Operation{Filter: f, Limit: b.Limit, Rate: b.Rate, DryRun: b.DryRun, Actor: b.Actor, Reason: b.Reason}
	if op.Limit == 0 {
		op.Limit = defaultOperationLimit
	}
	switch {
	case f == outbox.Filter{} && !b.All:
		return op, invalidRequest("all", "must be true when nothing else says which dead letters are meant")
	case f != outbox.Filter{} && b.All:
		return op, invalidRequest("all", "must not be given beside a filter")
	case b.Reason == "" && !b.DryRun:
		return op, invalidRequest("reason", "is required: it is kept in t_audit_log")
	case op.Limit < 0 || op.Limit > maxOperationLimit:
		return op, invalidRequest("limit", "must be a number from 1 to 10000")
	case op.Rate < 0, op.Rate > 0 && float64(op.Limit)/op.Rate > maxOperationTime.Seconds():
		return op, invalidRequest("rate", "must let the limit be reached within 20 s; ask several times, or use halfbox outbox redrive")
	}
	return op, nil
}
