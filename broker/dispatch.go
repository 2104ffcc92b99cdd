package broker

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"go.uber.org/zap"
)

// request is one request being processed. Exactly one of answer, fail and
// protocolError is called for it, now or later, from any goroutine.
type request struct {
	b    *Broker
	c    *conn
	cmd  *command
	hook *Request // nil without hooks
}

func (r *request) fields() *extReader { return &extReader{ext: r.cmd.Ext} }

// dispatch processes a request on the connection's reading goroutine, or later
// when a hook delays it. Handlers do not block on the storage, so that requests
// of one connection are taken up in the order they came.
func (b *Broker) dispatch(c *conn, cmd *command) {
	if cmd.response() {
		return // to 40 and 39, which expect none
	}
	r := &request{b: b, c: c, cmd: cmd}
	hooks := b.cfg.Hooks
	if hooks.OnRequest == nil && hooks.OnResponse == nil {
		r.process()
		return
	}
	hr := hookRequest(c.remote, cmd)
	r.hook = &hr
	var action Action
	if hooks.OnRequest != nil {
		action = hooks.OnRequest(hr)
	}
	r.act(action, r.process)
}

// act does what a hook said; goOn is what would have happened without it.
func (r *request) act(action Action, goOn func()) {
	r.b.after(action.Delay, func() {
		switch {
		case action.Disconnect:
			r.b.metrics.request(r.cmd.Code, "none")
			r.c.close()
		case action.Drop:
			r.b.metrics.request(r.cmd.Code, "none")
		case action.Code != 0:
			r.send(&command{Code: action.Code, Remark: action.Remark})
		default:
			goOn()
		}
	})
}

// after runs f now, or after d on a goroutine that Stop waits for; when the
// broker stops first, f is not run.
func (b *Broker) after(d time.Duration, f func()) {
	if d <= 0 {
		f()
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == stateStopped {
		return
	}
	b.wg.Go(func() {
		if b.sleep(d) {
			f()
		}
	})
}

func (r *request) process() {
	r.guard(func() {
		handle := handlerOf(r.cmd.Code)
		if handle == nil {
			r.answer(respNotSupported, fmt.Sprintf("request code %d is not supported", r.cmd.Code), nil, nil)
			return
		}
		handle(r.b, r)
	})
}

// guard turns a panic of f into an answer: a bug met by one request must not
// end the process.
func (r *request) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			r.b.metrics.handlerPanic.Inc()
			r.b.log.Error("panic in a request handler", zap.Int("code", r.cmd.Code), zap.String("remote", r.c.remote),
				zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			r.send(&command{Code: respSystemError, Remark: "internal error"})
		}
	}()
	f()
}

// handlerOf returns nil for a code that is not supported.
func handlerOf(code int) func(*Broker, *request) {
	switch code {
	case codeSendMessage, codeSendMessageV2:
		return (*Broker).handleSend
	case codeSendBatchMessage:
		return (*Broker).handleSendBatch
	case codePullMessage:
		return (*Broker).handlePull
	case codeQueryMessage:
		return (*Broker).handleQueryMessage
	case codeViewMessageByID:
		return (*Broker).handleViewMessage
	case codeQueryConsumerOffset:
		return (*Broker).handleQueryOffset
	case codeUpdateConsumerOffset:
		return (*Broker).handleUpdateOffset
	case codeCreateTopic:
		return (*Broker).handleCreateTopic
	case codeSearchOffset:
		return (*Broker).handleSearchOffset
	case codeGetMaxOffset:
		return (*Broker).handleMaxOffset
	case codeGetMinOffset:
		return (*Broker).handleMinOffset
	case codeHeartbeat:
		return (*Broker).handleHeartbeat
	case codeUnregisterClient:
		return (*Broker).handleUnregister
	case codeConsumerSendBack:
		return (*Broker).handleSendBack
	case codeEndTransaction:
		return (*Broker).handleEndTransaction
	case codeGetConsumerList:
		return (*Broker).handleConsumerList
	case codeLockBatchMQ:
		return (*Broker).handleLock
	case codeUnlockBatchMQ:
		return (*Broker).handleUnlock
	case codeGetRoute:
		return (*Broker).handleRoute
	case codeGetClusterInfo:
		return (*Broker).handleClusterInfo
	case codeGetProducerConnections:
		return (*Broker).handleProducerConnections
	case codeGetAllTopics:
		return (*Broker).handleAllTopics
	}
	return nil
}

// answer sends the response unless the request was one-way or a hook says otherwise.
func (r *request) answer(code int, remark string, ext map[string]string, body []byte) {
	resp := &command{Code: code, Remark: remark, Ext: ext, Body: body}
	hook := r.b.cfg.Hooks.OnResponse
	if r.hook == nil || hook == nil {
		r.send(resp)
		return
	}
	action := hook(*r.hook, code)
	if action.Code != 0 { // what goes with an answer stays: RocketMQ's statuses of a stored message carry its ids
		resp.Code, resp.Remark, action.Code = action.Code, action.Remark, 0
	}
	r.act(action, func() { r.send(resp) })
}

func (r *request) send(resp *command) {
	r.b.metrics.request(r.cmd.Code, strconv.Itoa(resp.Code))
	if r.cmd.oneWay() {
		return
	}
	resp.Flag, resp.Opaque = flagResponse, r.cmd.Opaque
	r.c.send(resp)
}

func (r *request) ok(ext map[string]string, body []byte) { r.answer(respSuccess, "", ext, body) }

// fail answers with a rejection's code, or 1 for any other error. The text of
// other errors stays in the log: it may name files of this machine.
func (r *request) fail(err error) {
	var rejected *rejection
	if errors.As(err, &rejected) {
		r.answer(rejected.code, rejected.remark, nil, nil)
		return
	}
	if !errors.Is(err, ErrStopped) {
		r.b.log.Error("request failed", zap.Int("code", r.cmd.Code), zap.String("remote", r.c.remote), zap.Error(err))
	}
	r.answer(respSystemError, "the broker could not read or write its storage", nil, nil)
}

// protocolError closes the connection of a client whose request cannot be
// understood: what follows on it is not to be trusted either.
func (r *request) protocolError(err error) {
	r.b.metrics.badFrames.Inc()
	r.b.metrics.request(r.cmd.Code, "none")
	r.c.fail("malformed request", err)
}
