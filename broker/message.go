package broker

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
)

// message is one message as it is stored and as consumers get it. Timestamps
// are Unix milliseconds. The encoding is RocketMQ's commit log record: int32
// total, magic, crc, queueId, flag, int64 queueOffset, int64 physical offset,
// int32 sysFlag, int64 born, born host, int64 stored, store host, int32
// reconsumeTimes, int64 preparedOffset, int32+body, byte+topic, int16+properties.
type message struct {
	topic          string
	queueID        int
	queueOffset    int64
	physicalOffset int64
	flag           int32
	sysFlag        int32
	bornTime       int64
	bornHost       netip.AddrPort
	storeTime      int64
	storeHost      netip.AddrPort
	reconsumeTimes int32
	preparedOffset int64
	body           []byte
	props          properties
}

const (
	messageMagic = 0xDAA320A7
	maxTopicSize = 127

	posQueueOffset    = 20
	posPhysicalOffset = 28
)

var errBadMessage = errors.New("malformed stored message")

func putHost(b []byte, host netip.AddrPort) []byte {
	b = append(b, host.Addr().AsSlice()...)
	return binary.BigEndian.AppendUint32(b, uint32(host.Port()))
}

// encode returns the record. Its two offsets are patched by setOffsets when
// they are known.
func (m *message) encode() ([]byte, error) {
	props := m.props.String()
	if len(props) > maxPropertiesSize {
		return nil, reject(respMessageIllegal, fmt.Sprintf("properties are %d bytes, %d allowed", len(props), maxPropertiesSize))
	}
	if len(m.topic) > maxTopicSize {
		return nil, reject(respMessageIllegal, fmt.Sprintf("topic is %d bytes, %d allowed", len(m.topic), maxTopicSize))
	}
	m.sysFlag &^= sysFlagBornHostV6 | sysFlagStoreHostV6
	if m.bornHost.Addr().Is6() {
		m.sysFlag |= sysFlagBornHostV6
	}
	if m.storeHost.Addr().Is6() {
		m.sysFlag |= sysFlagStoreHostV6
	}
	be := binary.BigEndian
	b := make([]byte, 4, 128+len(m.body)+len(m.topic)+len(props))
	b = be.AppendUint32(b, messageMagic)
	b = be.AppendUint32(b, crc32.ChecksumIEEE(m.body)&0x7FFFFFFF)
	b = be.AppendUint32(b, uint32(m.queueID))
	b = be.AppendUint32(b, uint32(m.flag))
	b = be.AppendUint64(b, uint64(m.queueOffset))
	b = be.AppendUint64(b, uint64(m.physicalOffset))
	b = be.AppendUint32(b, uint32(m.sysFlag))
	b = be.AppendUint64(b, uint64(m.bornTime))
	b = putHost(b, m.bornHost)
	b = be.AppendUint64(b, uint64(m.storeTime))
	b = putHost(b, m.storeHost)
	b = be.AppendUint32(b, uint32(m.reconsumeTimes))
	b = be.AppendUint64(b, uint64(m.preparedOffset))
	b = be.AppendUint32(b, uint32(len(m.body)))
	b = append(b, m.body...)
	b = append(b, byte(len(m.topic)))
	b = append(b, m.topic...)
	b = be.AppendUint16(b, uint16(len(props)))
	b = append(b, props...)
	be.PutUint32(b, uint32(len(b)))
	return b, nil
}

// setOffsets patches an encoded record.
func setOffsets(record []byte, queueOffset, physicalOffset int64) {
	binary.BigEndian.PutUint64(record[posQueueOffset:], uint64(queueOffset))
	binary.BigEndian.PutUint64(record[posPhysicalOffset:], uint64(physicalOffset))
}

// decodeMessage decodes one record that fills b. The body is a copy: b may be
// memory of a storage transaction.
func decodeMessage(b []byte) (*message, error) {
	m, body, err := decodeMessageShared(b)
	if err != nil {
		return nil, err
	}
	m.body = append([]byte(nil), body...)
	return m, nil
}

func decodeMessageShared(b []byte) (*message, []byte, error) {
	r := &reader{b: b}
	total, magic := r.u32(), r.u32()
	if r.bad || int(total) != len(b) || magic != messageMagic {
		return nil, nil, fmt.Errorf("%w: %d bytes, total %d, magic %x", errBadMessage, len(b), total, magic)
	}
	r.u32() // crc
	m := &message{}
	m.queueID = int(int32(r.u32()))
	m.flag = int32(r.u32())
	m.queueOffset = int64(r.u64())
	m.physicalOffset = int64(r.u64())
	m.sysFlag = int32(r.u32())
	m.bornTime = int64(r.u64())
	m.bornHost = r.host(m.sysFlag&sysFlagBornHostV6 != 0)
	m.storeTime = int64(r.u64())
	m.storeHost = r.host(m.sysFlag&sysFlagStoreHostV6 != 0)
	m.reconsumeTimes = int32(r.u32())
	m.preparedOffset = int64(r.u64())
	body := r.take(int(int32(r.u32())))
	m.topic = string(r.take(int(r.u8())))
	m.props = parseProperties(string(r.take(int(int16(r.u16())))))
	if r.bad || len(r.b) != 0 {
		return nil, nil, fmt.Errorf("%w: lengths do not add up to %d", errBadMessage, total)
	}
	return m, body, nil
}

// messageID is the id the broker gives: store host and physical offset, in 32
// hex digits (the clients need at least 32). Host is always IPv4, see storeHost.
func messageID(host netip.AddrPort, physicalOffset int64) string {
	b := binary.BigEndian.AppendUint64(putHost(nil, host), uint64(physicalOffset))
	return strings.ToUpper(hex.EncodeToString(b))
}

// reader reads big endian values; after the first value that is not there
// every value is zero and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

func (r *reader) u8() uint8 {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (r *reader) host(v6 bool) netip.AddrPort {
	size := 4
	if v6 {
		size = 16
	}
	addr, ok := netip.AddrFromSlice(r.take(size))
	port := r.u32()
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, uint16(port))
}

// hasKey tells whether key is the message's UNIQ_KEY or one of its KEYS.
func (m *message) hasKey(key string) bool {
	if m.props.value(propUniqKey) == key {
		return true
	}
	return slices.Contains(strings.Fields(m.props.value(propKeys)), key)
}
