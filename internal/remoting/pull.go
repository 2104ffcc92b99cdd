package remoting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// ToolsGroup is a consumer group that every broker has: tools read by it without leaving a trace.
const ToolsGroup = "TOOLS_CONSUMER"

// ErrNoTopic means that the broker does not have the topic.
var ErrNoTopic = errors.New("the broker does not have the topic")

// PullRequest asks for the messages of one queue from an offset on.
type PullRequest struct {
	Group  string
	Topic  string
	Queue  int
	Offset int64
	Max    int // messages
}

// Pulled is what a queue holds from an offset on.
type Pulled struct {
	// Messages in the order of their offsets; none at the queue's end. One that is Malformed comes alone.
	Messages []Message
	// Next is where the broker would read on; Min and Max are the offsets of the queue's first message and after its
	// last one.
	Next, Min, Max int64
	// Moved tells that the offset is not within the queue, or that what was there has been deleted.
	Moved bool
}

// Pull reads from a queue, without waiting for messages and without leaving an offset at the broker.
func Pull(ctx context.Context, addr string, r PullRequest, creds Credentials) (Pulled, error) {
	const bySubscription = "4" // a system flag: the subscription is in the request, the group need not be there
	a, err := Ask(ctx, addr, CodePull, map[string]string{
		"consumerGroup": r.Group, "topic": r.Topic, "queueId": strconv.Itoa(r.Queue),
		"queueOffset": strconv.FormatInt(r.Offset, 10), "maxMsgNums": strconv.Itoa(r.Max), "sysFlag": bySubscription,
		"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
	}, creds)
	if err != nil {
		return Pulled{}, err
	}
	switch a.Code {
	case CodeOK, CodePullNotFound, CodePullNotMatched, CodePullOffsetMoved:
	case CodeTopicNotExist:
		return Pulled{}, fmt.Errorf("%w: %s", ErrNoTopic, a.Remark)
	default:
		return Pulled{}, fmt.Errorf("pull of %s at %s: code %d: %s", r.Topic, addr, a.Code, a.Remark)
	}
	var p Pulled
	for name, into := range map[string]*int64{"nextBeginOffset": &p.Next, "minOffset": &p.Min, "maxOffset": &p.Max} {
		if *into, err = strconv.ParseInt(a.Ext[name], 10, 64); err != nil {
			return Pulled{}, fmt.Errorf("pull of %s at %s: answer lacks %s", r.Topic, addr, name)
		}
	}
	// Everything matches "*", so code 20 means that the messages there are being deleted.
	p.Moved = a.Code == CodePullOffsetMoved || a.Code == CodePullNotMatched && p.Next > r.Offset
	if a.Code == CodeOK {
		p.Messages = decodeMessages(a.Body, r.Offset)
	}
	// The end of a malformed message may be unknown, and where it is in the queue is: it is asked for alone.
	if i := slices.IndexFunc(p.Messages, func(m Message) bool { return m.Malformed != nil }); i > 0 {
		p.Messages = p.Messages[:i]
	} else if i == 0 && r.Max > 1 {
		r.Max = 1
		return Pull(ctx, addr, r, creds)
	}
	return p, nil
}
