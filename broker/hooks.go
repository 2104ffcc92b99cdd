package broker

import "time"

// Hooks inject faults and a clock. The zero value does nothing. Every hook may
// be called from several goroutines at once and must not block: a delay is
// asked for with Action.Delay. Hooks must not call methods of the Broker.
type Hooks struct {
	// OnRequest is asked before a request is processed. With Drop nothing is
	// processed and nothing answered; with Code the request is answered with
	// that code and not processed.
	OnRequest func(Request) Action
	// OnResponse is asked after a request was processed (and what it wrote is
	// durable), before its answer is sent: Drop loses the answer, Delay makes it
	// late, Code answers with that code and Remark instead of its own.
	OnResponse func(req Request, code int) Action
	// OnCheck is asked before a check-back (39) is sent to a producer. Code is
	// ignored. A dropped check counts as an attempt, as a lost one would.
	OnCheck func(Check) Action
	// KeepHalf is asked when a COMMIT or ROLLBACK ends a half message. True
	// leaves the half open although the verdict is carried out: it is checked
	// again and a second COMMIT delivers a second time. This is what RocketMQ 5
	// does when its batched op record is late or lost.
	KeepHalf func(uniqKey string) bool
	// StorageFault is asked before each write; the error it returns is treated
	// as a failed write of that request. op is one of "append", "half", "end",
	// "check", "delay", "deliver", "sendback", "topic", "offsets", "retention".
	StorageFault func(op string) error
	// Now is the clock of every decision and timestamp. Default time.Now.
	Now func() time.Time
}

// Action tells what to do with a request or an answer. The zero value goes on.
type Action struct {
	// Drop forgets the request or the answer.
	Drop bool
	// Delay waits first. Neither other connections nor other requests of the
	// same connection wait with it.
	Delay time.Duration
	// Disconnect closes the connection, after Delay, instead of going on.
	Disconnect bool
	// Code, when not zero, is the response code to answer with Remark.
	Code   int
	Remark string
}

// Request describes a request to the hooks. Ext must not be modified.
type Request struct {
	Code   int
	Remote string // client's ip:port
	Topic  string // "" when the request has none
	Group  string // producer or consumer group, "" when the request has none
	Ext    map[string]string
	OneWay bool
	// UniqKey is the UNIQ_KEY of the message sent (10, 310) or ended (37).
	UniqKey string
	// Half tells that a send (10, 310) carries a half message.
	Half bool
}

// Check describes a check-back to Hooks.OnCheck.
type Check struct {
	Remote, ProducerGroup, Topic, UniqKey string
	// Attempt is TRANSACTION_CHECK_TIMES: 1 for the first check.
	Attempt int
}

func hookRequest(remote string, cmd *command) Request {
	r := Request{
		Code: cmd.Code, Remote: remote, Ext: cmd.Ext, OneWay: cmd.oneWay(),
		Topic: cmd.Ext["topic"],
	}
	for _, key := range []string{"producerGroup", "consumerGroup", "group"} {
		if r.Group == "" {
			r.Group = cmd.Ext[key]
		}
	}
	switch cmd.Code {
	case codeSendMessage, codeSendMessageV2, codeSendBatchMessage:
		if h, err := decodeSendHeader(cmd); err == nil {
			r.Topic, r.Group = h.topic, h.producerGroup
			r.UniqKey, _ = h.props.get(propUniqKey)
			r.Half = h.isHalf()
		}
	case codeEndTransaction:
		r.UniqKey = cmd.Ext["msgId"]
	}
	return r
}
