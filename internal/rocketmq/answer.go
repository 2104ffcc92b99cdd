package rocketmq

import "fmt"

// The answers of a broker that mean something to a sender, by the codes of RocketMQ's remoting protocol.
const (
	CodeSystemBusy     = 2  // its threads or its disk are behind
	CodeMessageIllegal = 13 // a message it can never store: in practice one over its size limit
	CodeNoPermission   = 16 // the broker or the topic is read-only for now
	CodeTopicNotExist  = 17
	CodeFlowControl    = 215 // it sheds load
)

// AnswerCode reads the broker's answer out of an error of a send; false when the error is no answer of the broker. The
// codes are those of RocketMQ's remoting protocol, which the client hands on as text.
func AnswerCode(err error) (code int, ok bool) {
	_, scan := fmt.Sscanf(err.Error(), "CODE: %d,", &code)
	return code, scan == nil
}
