package remoting

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Message is a stored message.
type Message struct {
	Topic       string
	QueueID     int
	QueueOffset int64
	// BornAt is when it was made, by its sender's clock.
	BornAt time.Time
	// Body is as the sender gave it; as it was sent when BodyErr says why it cannot be decompressed.
	Body       []byte
	BodyErr    error
	Properties map[string]string
	// Malformed says why the stored record cannot be read. Only QueueOffset is known then, and Body is the record itself.
	Malformed error
}

// The names of properties that mean something here.
const (
	PropertyUniqueKey     = "UNIQ_KEY"
	PropertyTags          = "TAGS"
	PropertyKeys          = "KEYS"
	PropertyProducerGroup = "PGROUP"
	PropertyRealTopic     = "REAL_TOPIC"
	PropertyTransaction   = "TRAN_MSG"
)

const (
	messageMagic = 0xDAA320A7

	// Bits of a stored message's system flag.
	flagCompressed  = 0x1
	flagBornHostV6  = 0x10
	flagStoreHostV6 = 0x20
	// Which compression; clients that know only one leave it 0.
	compressionShift = 8
	compressionMask  = 0x7
	compressionZlib  = 3
)

var errBadMessage = errors.New("malformed stored message")

// decodeMessages reads stored messages, one after the other, the first of which is at offset from or behind it. One that
// cannot be read is said to be Malformed and follows the one before it; what comes after one whose end is not known
// is left out.
func decodeMessages(b []byte, from int64) (all []Message) {
	for len(b) > 0 {
		record, rest := cut(b)
		m, err := decodeMessage(record)
		if err == nil && m.QueueOffset < from {
			err = fmt.Errorf("%w: it says that its offset is %d, which is before %d", errBadMessage, m.QueueOffset, from)
		}
		if err != nil {
			m = Message{QueueOffset: from, Malformed: err, Body: bytes.Clone(record)}
		}
		all, b, from = append(all, m), rest, m.QueueOffset+1
	}
	return all
}

// cut finds the end of the first record, which is everything when its length makes no sense.
func cut(b []byte) (record, rest []byte) {
	if len(b) < 4 {
		return b, nil
	}
	size := binary.BigEndian.Uint32(b)
	if size < 4 || uint64(size) > uint64(len(b)) {
		return b, nil
	}
	return b[:size], b[size:]
}

// decodeMessage reads one record of RocketMQ's commit log: int32 total, magic, crc, queueId, flag, int64 queueOffset,
// int64 physical offset, int32 sysFlag, int64 born, born host, int64 stored, store host, int32 reconsumeTimes, int64
// preparedOffset, int32+body, byte+topic, int16+properties.
func decodeMessage(b []byte) (Message, error) {
	r := &record{b: b}
	size := r.u32()
	magic := r.u32()
	r.u32()
	var m Message
	m.QueueID = int(int32(r.u32()))
	r.u32()
	m.QueueOffset = int64(r.u64())
	r.u64()
	flag := r.u32()
	m.BornAt = time.UnixMilli(int64(r.u64()))
	r.host(flag & flagBornHostV6)
	r.u64()
	r.host(flag & flagStoreHostV6)
	r.u32()
	r.u64()
	body := r.take(int(int32(r.u32())))
	m.Topic = string(r.take(int(r.u8())))
	properties := string(r.take(int(r.u16())))
	if r.bad || len(r.b) != 0 || uint64(size) != uint64(len(b)) || magic != messageMagic {
		return Message{}, fmt.Errorf("%w: magic %x, its lengths do not add up to %d bytes", errBadMessage, magic, len(b))
	}
	m.Properties = parseProperties(properties)
	m.Body, m.BodyErr = decompress(body, flag)
	return m, nil
}

func parseProperties(text string) map[string]string {
	all := map[string]string{}
	for pair := range strings.SplitSeq(text, "\x02") {
		if name, value, ok := strings.Cut(pair, "\x01"); ok {
			all[name] = value
		}
	}
	return all
}

func decompress(body []byte, flag uint32) ([]byte, error) {
	kind := flag >> compressionShift & compressionMask
	switch {
	case flag&flagCompressed == 0:
		return bytes.Clone(body), nil
	case kind != 0 && kind != compressionZlib:
		return bytes.Clone(body), fmt.Errorf("body has compression %d, only zlib is known", kind)
	}
	z, err := zlib.NewReader(bytes.NewReader(body))
	if err != nil {
		return bytes.Clone(body), fmt.Errorf("decompress body: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxFrame+1))
	switch {
	case err != nil:
		return bytes.Clone(body), fmt.Errorf("decompress body: %w", err)
	case len(plain) > maxFrame:
		return bytes.Clone(body), fmt.Errorf("decompress body: more than %d bytes", maxFrame)
	}
	return plain, nil
}

// record reads big endian values; after the first one that is not there every value is zero and bad is set.
type record struct {
	b   []byte
	bad bool
}

func (r *record) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

func (r *record) number(size int) (n uint64) {
	for _, b := range r.take(size) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (r *record) u8() uint8   { return uint8(r.number(1)) }
func (r *record) u16() uint16 { return uint16(r.number(2)) }
func (r *record) u32() uint32 { return uint32(r.number(4)) }
func (r *record) u64() uint64 { return r.number(8) }

// host passes over an address and a port.
func (r *record) host(v6 uint32) {
	if v6 != 0 {
		r.take(16 + 4)
		return
	}
	r.take(4 + 4)
}
