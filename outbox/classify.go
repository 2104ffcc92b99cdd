package outbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"unicode/utf8"
)

// Classes of a sink's errors, to be found with errors.Is. An error of none of them spends a retry.
var (
	// ErrRefused means that the sink will never take this event: too large, bad topic, an HTTP 4xx.
	ErrRefused = errors.New("refused by the sink")
	// ErrUnreachable means that the sink cannot be reached or takes nothing at present. It spends no retries.
	ErrUnreachable = errors.New("sink unreachable")
	// ErrTimeout means that no answer came in time: the events may have arrived or not.
	ErrTimeout = errors.New("no answer from the sink in time")
)

// Refused wraps err so that errors.Is finds ErrRefused.
func Refused(err error) error { return fmt.Errorf("%w: %w", ErrRefused, err) }

// Unreachable wraps err so that errors.Is finds ErrUnreachable.
func Unreachable(err error) error { return fmt.Errorf("%w: %w", ErrUnreachable, err) }

// Timeout wraps err so that errors.Is finds ErrTimeout.
func Timeout(err error) error { return fmt.Errorf("%w: %w", ErrTimeout, err) }

// class is the outcome of one send, and the label "result" of the attempts metric.
type class string

const (
	classSuccess     class = "success"
	classRefused     class = "refused"
	classUnreachable class = "unreachable"
	classTimeout     class = "timeout"
	classError       class = "error"
	classCanceled    class = "canceled" // by our own hard stop: outcome unknown, the lease decides
)

func classes() []class {
	return []class{classSuccess, classRefused, classUnreachable, classTimeout, classError, classCanceled}
}

// classify sorts a sink's error. What the sink says itself comes first; the rest is what Go's own errors tell.
func classify(err error) class {
	var network net.Error
	var op *net.OpError
	switch {
	case err == nil:
		return classSuccess
	case errors.Is(err, ErrRefused):
		return classRefused
	case errors.Is(err, ErrUnreachable):
		return classUnreachable
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return classTimeout
	case errors.As(err, &op) && op.Op == "dial":
		// Nothing was sent, however the dial ended.
		return classUnreachable
	case errors.As(err, &network) && network.Timeout():
		return classTimeout
	case errors.As(err, &op):
		return classUnreachable
	}
	return classError
}

// Reasons why a record is a dead letter. last_error of a FAIL record begins with one of them and a colon.
const (
	ReasonRefused     = "refused"
	ReasonRetries     = "retries exhausted"
	ReasonKillsRelay  = "reclaimed too often"
	ReasonBadHeaders  = "unreadable headers"
	maxLastError      = 1024 // width of last_error in characters
	errorTextEllipsis = "…"
)

func reasons() []string {
	return []string{ReasonRefused, ReasonRetries, ReasonKillsRelay, ReasonBadHeaders}
}

// errorText makes an error fit for last_error: valid UTF-8, one line, no longer than the column.
func errorText(reason string, err error) string {
	text := err.Error()
	if reason != "" {
		text = reason + ": " + text
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))
	if utf8.RuneCountInString(text) <= maxLastError {
		return text
	}
	return string([]rune(text)[:maxLastError-1]) + errorTextEllipsis
}
