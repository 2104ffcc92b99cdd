package netfault

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRewriteRoute(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"quoted keys":   `{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"a:1"}],"queueDatas":[]}`,
		"unquoted keys": `{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"a:1"}],"queueDatas":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, []string{"127.0.0.1:10911"}, BrokerAddrs([]byte(body)))
			got := rewriteRoute([]byte(body), func(string) string { return "127.0.0.1:5" })
			require.Contains(t, string(got), `"127.0.0.1:5"}`)
			require.Contains(t, string(got), `"brokerName":"a:1"`)
			require.NotContains(t, string(got), "10911")
		})
	}
	many := `{"brokerAddrs":{"0":"broker-a:10911","1":"10.0.0.2:10911"}} {"brokerAddrs":{"0":"b:1"}} {"other":{"0":"c:1"}}`
	require.Equal(t, []string{"broker-a:10911", "10.0.0.2:10911", "b:1"}, BrokerAddrs([]byte(many)))
	require.Empty(t, BrokerAddrs(nil))
}

func TestFrames(t *testing.T) {
	t.Parallel()
	raw, err := header{Code: codeRoute, Opaque: 7, ExtFields: map[string]string{"topic": "x"}}.encode()
	require.NoError(t, err)
	f, err := readFrame(bytes.NewReader(raw))
	require.NoError(t, err)
	require.Equal(t, raw, f.raw)
	require.EqualValues(t, 7, f.head.Opaque)
	require.False(t, f.response())

	with := f.withBody([]byte("body"))
	f, err = readFrame(bytes.NewReader(with))
	require.NoError(t, err)
	require.Equal(t, "body", string(f.body))
	require.Equal(t, codeRoute, f.head.Code)

	for name, bad := range map[string][]byte{
		"length too small": {0, 0, 0, 3, 0, 0, 0},
		"length too large": {0x7f, 0, 0, 0},
		"header too long":  {0, 0, 0, 5, 0, 0, 0, 9, '{'},
		"header not JSON":  {0, 0, 0, 5, 0, 0, 0, 1, '{'},
		"cut short":        raw[:len(raw)-1],
	} {
		_, err := readFrame(bytes.NewReader(bad))
		require.Error(t, err, name)
	}
	// The binary serialization passes as it is.
	f, err = readFrame(bytes.NewReader([]byte{0, 0, 0, 5, 1, 0, 0, 1, 'x'}))
	require.NoError(t, err)
	require.Empty(t, f.head)
}

func TestFramesCountMessages(t *testing.T) {
	t.Parallel()
	item := func(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n))[:4:4] }
	batch := append(append(append(item(6), 1, 2), item(4)...), append(item(5), 9)...)
	for want, f := range map[int]frame{
		0: {head: header{Code: codeRoute}, body: []byte("x")},
		1: {head: header{Code: codeSendV2}, body: []byte("hello, a single message")},
		3: {head: header{Code: codeSendBatch}, body: batch},
		2: {head: header{Code: codeSendV2, ExtFields: map[string]string{"m": "true"}}, body: batch[:10]},
	} {
		require.Equal(t, want, f.messages())
	}
}

// encode returns the bytes of a request without a body.
func (h header) encode() ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 8, 8+len(text))
	binary.BigEndian.PutUint32(raw, uint32(4+len(text)))
	binary.BigEndian.PutUint32(raw[4:], uint32(len(text)))
	return append(raw, text...), nil
}
