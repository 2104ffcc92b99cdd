package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/outbox"
)

// Answers of the broker, by the codes of RocketMQ's remoting protocol.
const (
	codeSystemBusy          = 2
	codeServiceNotAvailable = 14
	codeNoPermission        = 16 // the broker or topic is read-only for now
	codeTopicNotExist       = 17
	codeFlowControl         = 215
)

// The client's words for what has no type. Its error package cannot be relied on: it is wrapped in places.
const (
	textRequestTimeout = "request timeout"
	textNoRoute        = "route info not found"
	textNotRunning     = "not running"
	textNotStarted     = "producer not started"
)

// isNoRoute is true for a send that found no queue of its topic; nothing was sent.
func isNoRoute(err error) bool { return err != nil && strings.Contains(err.Error(), textNoRoute) }

// verdict turns the client's answer into an error of the outbox's classes; nil means that the batch is stored.
func verdict(res *primitive.SendResult, err error) error {
	if err == nil {
		if res.Status != primitive.SendOK {
			return outbox.Unreachable(fmt.Errorf("stored less safely than configured: send status %d", res.Status))
		}
		return nil
	}
	if code, ok := rocketmq.AnswerCode(err); ok {
		switch code {
		case rocketmq.CodeMessageIllegal, codeTopicNotExist:
			return outbox.Refused(err)
		case codeSystemBusy, codeFlowControl, codeServiceNotAvailable, codeNoPermission:
			return outbox.Unreachable(err)
		}
		return err
	}
	return transport(err)
}

// transport sorts errors that are not an answer of the broker.
func transport(err error) error {
	var op *net.OpError
	text := err.Error()
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return outbox.Unreachable(err)
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded), strings.Contains(text, textRequestTimeout):
		return outbox.Timeout(err)
	case errors.As(err, &op) && op.Timeout():
		return outbox.Timeout(err)
	case errors.As(err, &op), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed),
		strings.Contains(text, textNotRunning), strings.Contains(text, textNotStarted):
		return outbox.Unreachable(err)
	}
	return err
}
