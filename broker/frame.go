package broker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// command is one remoting command: a request, a response, or a request of ours
// to a client. Frame: int32 total | byte serializer + int24 header length |
// header JSON | body; total does not count itself.
type command struct {
	Code    int               `json:"code"`
	Flag    int               `json:"flag"`
	Lang    string            `json:"language"`
	Opaque  int32             `json:"opaque"`
	Remark  string            `json:"remark,omitempty"`
	Ext     map[string]string `json:"extFields,omitempty"`
	Version int               `json:"version"`
	Body    []byte            `json:"-"`
}

const (
	flagResponse = 1
	flagOneWay   = 2

	serializerJSON = 0
	maxHeaderSize  = 1 << 20
)

func (c *command) oneWay() bool   { return c.Flag&flagOneWay != 0 }
func (c *command) response() bool { return c.Flag&flagResponse != 0 }

var (
	errFrameTooLarge = errors.New("frame is too large")
	errBadFrame      = errors.New("malformed frame")
	errSerializer    = errors.New("only JSON headers are supported")
)

// readFrame reads one frame of at most limit bytes after its length. A frame
// that is announced but does not arrive never costs more memory than what did.
func readFrame(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	total := int(int32(binary.BigEndian.Uint32(head[:])))
	if total < 4 {
		return nil, fmt.Errorf("%w: length %d", errBadFrame, total)
	}
	if total > limit {
		return nil, fmt.Errorf("%w: %d bytes announced, %d allowed", errFrameTooLarge, total, limit)
	}
	const trusted = 64 << 10
	if total <= trusted {
		frame := make([]byte, total)
		_, err := io.ReadFull(r, frame)
		return frame, noEOF(err)
	}
	var buf bytes.Buffer
	buf.Grow(trusted)
	if _, err := io.CopyN(&buf, r, int64(total)); err != nil {
		return nil, noEOF(err)
	}
	return buf.Bytes(), nil
}

// noEOF tells an end inside a frame from one between frames.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decodeCommand decodes a frame without its length. Body aliases frame.
func decodeCommand(frame []byte) (*command, error) {
	if len(frame) < 4 {
		return nil, fmt.Errorf("%w: %d bytes", errBadFrame, len(frame))
	}
	word := binary.BigEndian.Uint32(frame)
	if word>>24 != serializerJSON {
		return nil, fmt.Errorf("%w: header serializer %d", errSerializer, word>>24)
	}
	size := int(word & 0xFFFFFF)
	if size > len(frame)-4 || size > maxHeaderSize {
		return nil, fmt.Errorf("%w: header of %d bytes in a frame of %d", errBadFrame, size, len(frame))
	}
	cmd := &command{}
	if err := json.Unmarshal(frame[4:4+size], cmd); err != nil {
		return nil, fmt.Errorf("%w: header: %w", errBadFrame, err)
	}
	cmd.Body = frame[4+size:]
	return cmd, nil
}

// encodeCommand returns the whole frame, length included.
func encodeCommand(cmd *command) ([]byte, error) {
	cmd.Lang, cmd.Version = "GO", protocolVersion
	header, err := json.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	if len(header) > 0xFFFFFF {
		return nil, fmt.Errorf("encode header: %d bytes", len(header))
	}
	frame := make([]byte, 8, 8+len(header)+len(cmd.Body))
	binary.BigEndian.PutUint32(frame, uint32(4+len(header)+len(cmd.Body)))
	binary.BigEndian.PutUint32(frame[4:], uint32(len(header))) // serializer byte 0
	return append(append(frame, header...), cmd.Body...), nil
}
