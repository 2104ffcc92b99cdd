package rocketmq

import "fmt"

// CodeMessageIllegal is what a broker answers to a message it can never store: in practice one over its size limit.
const CodeMessageIllegal = 13

// AnswerCode reads the broker's answer out of an error of a send; false when the error is no answer of the broker. The
// codes are those of RocketMQ's remoting protocol, which the client hands on as text.
func AnswerCode(err error) (code int, ok bool) {
	_, scan := fmt.Sscanf(err.Error(), "CODE: %d,", &code)
	return code, scan == nil
}
