package remoting

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// stored encodes a message as brokers store it.
func stored(body []byte, flag uint32, v6 bool) []byte {
	host := make([]byte, 8)
	if v6 {
		host, flag = make([]byte, 20), flag|flagBornHostV6|flagStoreHostV6
	}
	be := binary.BigEndian
	b := be.AppendUint32(make([]byte, 4), messageMagic)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint32(b, 3)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint64(b, 41)
	b = be.AppendUint64(b, 99)
	b = be.AppendUint32(b, flag)
	b = be.AppendUint64(b, 1700000000123)
	b = append(b, host...)
	b = be.AppendUint64(b, 0)
	b = append(b, host...)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint64(b, 0)
	b = be.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	b = append(append(b, 1), 'T')
	properties := "PGROUP\x01g\x02KEYS\x01a=b\x02broken\x02"
	b = be.AppendUint16(b, uint16(len(properties)))
	b = append(b, properties...)
	be.PutUint32(b, uint32(len(b)))
	return b
}

func deflated(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	_, err := z.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.Bytes()
}

func TestDecodeMessages(t *testing.T) {
	t.Parallel()
	body := append(stored([]byte("plain"), 0, false), stored(deflated(t, "packed"), flagCompressed, true)...)
	body = append(body, stored(deflated(t, "packed"), flagCompressed|compressionZlib<<compressionShift, false)...)
	for i, b := 0, body; len(b) > 0; i++ {
		var one []byte
		one, b = cut(b)
		binary.BigEndian.PutUint64(one[20:], uint64(41+i))
	}
	all := decodeMessages(body, 40)
	require.Len(t, all, 3)
	for i, want := range []string{"plain", "packed", "packed"} {
		m := all[i]
		require.NoError(t, m.Malformed)
		require.NoError(t, m.BodyErr)
		require.Equal(t, want, string(m.Body))
		require.Equal(t, []any{"T", 3, int64(41 + i), int64(1700000000123)}, []any{m.Topic, m.QueueID, m.QueueOffset, m.BornAt.UnixMilli()})
		require.Equal(t, map[string]string{"PGROUP": "g", "KEYS": "a=b"}, m.Properties)
	}
}

// A body that cannot be decompressed leaves its message, which says where to read on.
func TestDecodeBadBodies(t *testing.T) {
	t.Parallel()
	for name, m := range map[string][]byte{
		"not zlib":  stored([]byte("junk"), flagCompressed, false),
		"cut off":   stored(deflated(t, "packed")[:6], flagCompressed, false),
		"not known": stored(deflated(t, "packed"), flagCompressed|1<<compressionShift, false),
		"too large": stored(deflated(t, string(make([]byte, maxFrame+1))), flagCompressed, false),
	} {
		all := decodeMessages(m, 41)
		require.NoError(t, all[0].Malformed, name)
		require.Error(t, all[0].BodyErr, name)
		require.EqualValues(t, 41, all[0].QueueOffset)
	}
}

func TestDecodeMalformedMessages(t *testing.T) {
	t.Parallel()
	malformed := func(b []byte, what string, args ...any) {
		t.Helper()
		all := decodeMessages(b, 41)
		require.Len(t, all, 1, append([]any{what}, args...)...)
		require.ErrorIs(t, all[0].Malformed, errBadMessage)
		require.Equal(t, Message{QueueOffset: 41, Body: b, Malformed: all[0].Malformed}, all[0])
	}
	whole := stored([]byte("plain"), 0, false)
	for cut := 1; cut < len(whole); cut++ {
		malformed(whole[:cut], "%d bytes", cut)
		short := bytes.Clone(whole[:cut])
		if cut >= 4 {
			binary.BigEndian.PutUint32(short, uint32(cut))
			malformed(short, "%d bytes that say so", cut)
		}
	}
	other := bytes.Clone(whole)
	other[4] ^= 1
	malformed(other, "another magic number")
	early := bytes.Clone(whole)
	early[27]-- // reading on behind it would be reading it again
	malformed(early, "an offset before the one asked for")

	next := bytes.Clone(whole)
	next[27]++
	all := decodeMessages(append(bytes.Clone(other), next...), 41)
	require.Len(t, all, 2)
	require.Error(t, all[0].Malformed)
	require.NoError(t, all[1].Malformed, "its end is known, so the next one is read")
	require.EqualValues(t, 42, all[1].QueueOffset)
}

// Name servers write the ids of brokers without quotes to clients that do not ask for JSON.
func TestReadRoute(t *testing.T) {
	t.Parallel()
	readable := func(q queueData) int { return q.usable(permRead, q.ReadQueueNums) }
	for _, body := range []string{
		`{"brokerDatas":[{"brokerAddrs":{"0":"a:1","1":"slave:1"},"brokerName":"b1"},{"brokerAddrs":{"1":"slave:2"},"brokerName":"b2"},{"brokerAddrs":{"0":"c:3"},"brokerName":"b3"}],"queueDatas":[{"brokerName":"b3","perm":6,"readQueueNums":1},{"brokerName":"b1","perm":4,"readQueueNums":2},{"brokerName":"b2","perm":6,"readQueueNums":1}]}`,
		`{"brokerDatas":[{"brokerAddrs":{0:"a:1",1:"slave:1"},"brokerName":"b1"},{"brokerAddrs":{0:"c:3"},"brokerName":"b3"}],"queueDatas":[{"brokerName":"b3","perm":6,"readQueueNums":1},{"brokerName":"b1","perm":4,"readQueueNums":2},{"brokerName":"b1","perm":2,"readQueueNums":9}]}`,
	} {
		queues, err := readRoute([]byte(body), readable)
		require.NoError(t, err)
		require.Equal(t, []Queue{{"b1", "a:1", 0}, {"b1", "a:1", 1}, {"b3", "c:3", 0}}, queues)
	}
	_, err := readRoute([]byte("<html>"), readable)
	require.Error(t, err)
}

// The signature covers the values in the order of their names, and the body.
func TestSignature(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	got := make(chan Answer, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		a, _ := read(conn)
		got <- a
		frame, _ := encode(header{Flag: 1, Opaque: 1}, nil)
		_, _ = conn.Write(frame)
	}()
	_, err = AskWithBody(context.Background(), l.Addr().String(), CodeSend, map[string]string{"b": "2", "a": "1"}, []byte("body"), Credentials{"key", "secret"})
	require.NoError(t, err)
	a := <-got
	mac := hmac.New(sha1.New, []byte("secret"))
	mac.Write([]byte("key" + "1" + "2" + "body")) // AccessKey, a, b
	require.Equal(t, base64.StdEncoding.EncodeToString(mac.Sum(nil)), a.Ext["Signature"])
	require.Equal(t, "body", string(a.Body))
}
