package netfault

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A command of RocketMQ's remoting protocol on the wire: int32 length of the rest, byte serializer and int24 length of
// the header, header, body. The kit speaks it on its own, so that it depends on no client whose faults it helps to test.
type frame struct {
	raw  []byte // all of it
	head header
	body []byte // aliases raw
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

const (
	codeRoute       = 105
	codeClusterInfo = 106

	codeSend      = 10
	codeSendV2    = 310
	codeSendBatch = 320

	responseFlag = 1
	maxFrame     = 32 << 20
)

var errFrame = errors.New("not a frame of RocketMQ's protocol")

func (f frame) response() bool { return f.head.Flag&responseFlag != 0 }

// readFrame reads one frame. A header in the binary serialization is left unread: head is then empty.
func readFrame(r io.Reader) (frame, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < 4 || n > maxFrame {
		return frame{}, fmt.Errorf("%w: length %d", errFrame, n)
	}
	raw := make([]byte, 4+n)
	copy(raw, size[:])
	if _, err := io.ReadFull(r, raw[4:]); err != nil {
		return frame{}, err
	}
	f := frame{raw: raw}
	word := binary.BigEndian.Uint32(raw[4:])
	length := int(word & 0xFFFFFF)
	if 8+length > len(raw) {
		return frame{}, fmt.Errorf("%w: header of %d bytes in %d", errFrame, length, n)
	}
	f.body = raw[8+length:]
	if serializer := word >> 24; serializer == 0 {
		if err := json.Unmarshal(raw[8:8+length], &f.head); err != nil {
			return frame{}, fmt.Errorf("%w: %w", errFrame, err)
		}
	}
	return f, nil
}

// messages counts the messages that a request carries. Each message of a batch begins with its length.
func (f frame) messages() (n int) {
	batch := f.head.Code == codeSendBatch || f.head.ExtFields["m"] == "true" || f.head.ExtFields["batch"] == "true"
	switch {
	case f.head.Code != codeSend && f.head.Code != codeSendV2 && f.head.Code != codeSendBatch:
		return 0
	case !batch:
		return 1
	}
	for rest := f.body; len(rest) >= 4; n++ {
		size := int(binary.BigEndian.Uint32(rest))
		if size < 4 || size > len(rest) {
			break
		}
		rest = rest[size:]
	}
	return n
}

// withBody returns the frame's bytes with another body. The header is kept byte by byte: it may hold more than the
// kit knows of.
func (f frame) withBody(body []byte) []byte {
	head := f.raw[:len(f.raw)-len(f.body)]
	raw := append(append(make([]byte, 0, len(head)+len(body)), head...), body...)
	binary.BigEndian.PutUint32(raw, uint32(len(raw)-4))
	return raw
}
