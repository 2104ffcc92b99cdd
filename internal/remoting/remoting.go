// Package remoting asks RocketMQ name servers and brokers the administrative questions that rocketmq-client-go has no
// call for. It asks one question after the other; it is meant for tools, not for traffic.
package remoting

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" // what RocketMQ's ACL asks for
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// The request codes that are asked here.
const (
	CodeSend           = 10
	CodePull           = 11
	CodeConsumerOffset = 14
	CodeUpdateTopic    = 17
	CodeBrokerConfig   = 26
	CodeMaxOffset      = 30
	CodeMinOffset      = 31
	CodeRoute          = 105
	CodeClusterInfo    = 106

	CodeProducerConnections     = 204
	CodeDeleteGroup             = 207
	CodeDeleteTopic             = 215
	CodeDeleteTopicAtNameServer = 216
)

// The response codes that mean something here.
const (
	CodeOK              = 0
	CodeSystemError     = 1
	CodeNotSupported    = 3
	CodeNoPermission    = 16
	CodeTopicNotExist   = 17
	CodePullNotFound    = 19
	CodePullNotMatched  = 20
	CodePullOffsetMoved = 21
	CodeNotFound        = 22
)

const (
	// askTimeout bounds a question whose context has no deadline.
	askTimeout = 5 * time.Second
	maxFrame   = 32 << 20
	// protocolVersion is the one that rocketmq-client-go sends.
	protocolVersion = 317
)

// Credentials sign a request for a cluster with access control; empty for one without.
type Credentials struct{ AccessKey, SecretKey string }

// Answer is what a server answered.
type Answer struct {
	Code   int
	Remark string
	Ext    map[string]string
	Body   []byte
}

type header struct {
	Code      int               `json:"code"`
	Flag      int               `json:"flag"`
	Language  string            `json:"language"`
	Version   int               `json:"version"`
	Opaque    int32             `json:"opaque"`
	Remark    string            `json:"remark,omitempty"`
	ExtFields map[string]string `json:"extFields,omitempty"`
}

// Ask sends one request without a body to addr (host:port) on a connection of its own and returns the answer. An answer
// with an error code is an answer, not an error. ctx bounds everything, and so do 5 s; see Conn.Ask for longer questions.
func Ask(ctx context.Context, addr string, code int, ext map[string]string, creds Credentials) (Answer, error) {
	return AskWithBody(ctx, addr, code, ext, nil, creds)
}

// AskWithBody is Ask with a body.
func AskWithBody(ctx context.Context, addr string, code int, ext map[string]string, body []byte, creds Credentials) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := Dial(ctx, addr, creds)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = c.Close() }() // the answer is there or it is not
	return c.AskWithBody(ctx, code, ext, body)
}

func encode(h header, body []byte) ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, 8, 8+len(text)+len(body))
	binary.BigEndian.PutUint32(frame, uint32(4+len(text)+len(body)))
	binary.BigEndian.PutUint32(frame[4:], uint32(len(text))) // the high byte 0 says JSON
	return append(append(frame, text...), body...), nil
}

func read(r io.Reader) (Answer, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return Answer{}, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < 4 || n > maxFrame {
		return Answer{}, fmt.Errorf("not RocketMQ's protocol: frame of %d bytes", n)
	}
	frame := make([]byte, n)
	if _, err := io.ReadFull(r, frame); err != nil {
		return Answer{}, err
	}
	word := binary.BigEndian.Uint32(frame)
	length := word & 0xFFFFFF
	if word>>24 != 0 || 4+length > n {
		return Answer{}, errors.New("not RocketMQ's protocol: header is not JSON")
	}
	var h header
	if err := json.Unmarshal(frame[4:4+length], &h); err != nil {
		return Answer{}, fmt.Errorf("not RocketMQ's protocol: %w", err)
	}
	return Answer{Code: h.Code, Remark: h.Remark, Ext: h.ExtFields, Body: frame[4+length:]}, nil
}

// sign adds the signature that RocketMQ's access control wants: an HMAC-SHA1 over the values in the order of their
// names, and the body.
func sign(ext map[string]string, body []byte, creds Credentials) map[string]string {
	if creds.AccessKey == "" {
		return ext
	}
	signed := maps.Clone(ext)
	if signed == nil {
		signed = map[string]string{}
	}
	signed["AccessKey"] = creds.AccessKey
	mac := hmac.New(sha1.New, []byte(creds.SecretKey))
	for _, name := range slices.Sorted(maps.Keys(signed)) {
		mac.Write([]byte(signed[name]))
	}
	mac.Write(body)
	signed["Signature"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return signed
}
