package broker

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func seedMessage() *message {
	return &message{
		topic: "orders", queueID: 1, queueOffset: 2, physicalOffset: 3, bornTime: 4, storeTime: 5,
		bornHost: netip.MustParseAddrPort("10.0.0.1:99"), storeHost: netip.MustParseAddrPort("127.0.0.1:9876"),
		body: []byte("body"), props: parseProperties("a\x01b\x02c\x01\x02"),
	}
}

// FuzzReadFrame: no input makes the frame reader or the header decoder panic,
// and what decodes survives a round trip.
func FuzzReadFrame(f *testing.F) {
	good, err := encodeCommand(&command{Code: 10, Opaque: 7, Ext: map[string]string{"topic": "t", "properties": "a\x01b\x02"}, Body: []byte("x")})
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:9])
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 0})
	f.Add([]byte{0xFF, 0xFF, 0xFF, 0xFF})
	f.Add([]byte{0, 0, 0, 8, 1, 0, 0, 4, 0, 0, 0, 0})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		frame, err := readFrame(bytes.NewReader(in), 1<<20)
		if err != nil {
			return
		}
		cmd, err := decodeCommand(frame)
		if err != nil {
			return
		}
		_, _ = decodeSendHeader(cmd)
		_ = hookRequest("x", cmd)
		again, err := encodeCommand(cmd)
		require.NoError(t, err)
		back, err := decodeCommand(again[4:])
		require.NoError(t, err)
		require.Equal(t, cmd.Code, back.Code)
		require.True(t, bytes.Equal(cmd.Body, back.Body))
	})
}

// FuzzDecodeMessage: a record that decodes encodes to the same message.
func FuzzDecodeMessage(f *testing.F) {
	record, err := seedMessage().encode()
	require.NoError(f, err)
	f.Add(record)
	v6 := seedMessage()
	v6.bornHost = netip.MustParseAddrPort("[2001:db8::1]:99")
	record6, err := v6.encode()
	require.NoError(f, err)
	f.Add(record6)
	f.Add(record[:len(record)-1])
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := decodeMessage(in)
		_, _ = decodeHalf(in)
		if err != nil {
			return
		}
		again, err := m.encode()
		if err != nil {
			return // a topic longer than ours may be
		}
		back, err := decodeMessage(again)
		require.NoError(t, err)
		require.Equal(t, m, back)
	})
}

func FuzzDecodeBatch(f *testing.F) {
	f.Add([]byte{0, 0, 0, 23, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'x', 0, 0})
	f.Add([]byte{0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0})
	f.Add([]byte{0x7F, 0xFF, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, in []byte) {
		items, err := decodeBatch(in)
		if err != nil {
			return
		}
		size := 0
		for _, item := range items {
			size += len(item.body) + 22
		}
		require.LessOrEqual(t, size, len(in))
	})
}

func FuzzProperties(f *testing.F) {
	f.Add("a\x01b\x02c\x01d\x02")
	f.Add("\x01\x02\x01\x01\x02a\x01b")
	f.Fuzz(func(t *testing.T, in string) {
		props := parseProperties(in)
		require.Equal(t, props.toMap(), parseProperties(props.String()).toMap())
	})
}
