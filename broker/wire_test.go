package broker_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/internal/brokertest"
)

// wire is a client that speaks frames, right or wrong ones.
type wire struct {
	t      testing.TB
	c      net.Conn
	r      *bufio.Reader
	opaque int
}

func dial(t testing.TB, b *broker.Broker) *wire {
	t.Helper()
	c, err := net.Dial("tcp", b.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &wire{t: t, c: c, r: bufio.NewReader(c)}
}

// park has a pull of the empty topic orders, which has one queue then, wait at
// the broker for as long as it lets one.
func park(t testing.TB, b *broker.Broker) *wire {
	t.Helper()
	w := dial(t, b)
	require.Zero(t, w.call(17, map[string]string{"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1"}, nil).Code)
	w.request(11, map[string]string{
		"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "2", "suspendTimeoutMillis": "25000",
	}, nil)
	eventually(t, func() bool { return b.Stats().ParkedPulls == 1 }, "not parked")
	return w
}

type reply struct {
	Code   int               `json:"code"`
	Opaque int               `json:"opaque"`
	Flag   int               `json:"flag"`
	Remark string            `json:"remark"`
	Ext    map[string]string `json:"extFields"`
	body   []byte
}

func frame(header string, body []byte) []byte {
	f := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)+len(body)))
	f = binary.BigEndian.AppendUint32(f, uint32(len(header)))
	return append(append(f, header...), body...)
}

func (w *wire) request(code int, ext map[string]string, body []byte) int {
	w.t.Helper()
	w.raw(w.encode(code, ext, body))
	return w.opaque
}

func (w *wire) encode(code int, ext map[string]string, body []byte) []byte {
	w.t.Helper()
	w.opaque++
	header, err := json.Marshal(map[string]any{"code": code, "language": "JAVA", "opaque": w.opaque, "flag": 0, "version": 493, "extFields": ext})
	require.NoError(w.t, err)
	return frame(string(header), body)
}

func (w *wire) raw(b []byte) {
	w.t.Helper()
	_, err := w.c.Write(b)
	require.NoError(w.t, err)
}

func (w *wire) read() reply {
	w.t.Helper()
	require.NoError(w.t, w.c.SetReadDeadline(time.Now().Add(patience)))
	var head [8]byte
	_, err := io.ReadFull(w.r, head[:])
	require.NoError(w.t, err)
	rest := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	_, err = io.ReadFull(w.r, rest)
	require.NoError(w.t, err)
	n := binary.BigEndian.Uint32(head[4:]) & 0xFFFFFF
	var r reply
	require.NoError(w.t, json.Unmarshal(rest[:n], &r))
	r.body = rest[n:]
	return r
}

func (w *wire) call(code int, ext map[string]string, body []byte) reply {
	w.t.Helper()
	opaque := w.request(code, ext, body)
	r := w.read()
	require.Equal(w.t, opaque, r.Opaque)
	require.Equal(w.t, 1, r.Flag&1)
	return r
}

func (w *wire) requireClosed() {
	w.t.Helper()
	require.NoError(w.t, w.c.SetReadDeadline(time.Now().Add(patience)))
	_, err := w.r.ReadByte()
	require.Error(w.t, err)
	require.NotErrorIs(w.t, err, os.ErrDeadlineExceeded, "still open")
}

// try sends a request and tells whether it was answered with success.
func (w *wire) try(code int, ext map[string]string) bool {
	w.opaque++
	header, _ := json.Marshal(map[string]any{"code": code, "opaque": w.opaque, "extFields": ext})
	if _, err := w.c.Write(frame(string(header), []byte("x"))); err != nil {
		return false
	}
	var head [8]byte
	if _, err := io.ReadFull(w.r, head[:]); err != nil {
		return false
	}
	rest := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	if _, err := io.ReadFull(w.r, rest); err != nil {
		return false
	}
	var r reply
	return json.Unmarshal(rest, &r) == nil && r.Code == 0
}

func sendExt(topic string) map[string]string {
	return map[string]string{
		"producerGroup": "pg", "topic": topic, "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
		"properties": "UNIQ_KEY\x01id-1\x02KEYS\x01k1 k2\x02", "reconsumeTimes": "0", "batch": "false",
	}
}

func TestMalformedFramesHarmNothing(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.WarnLevel)
	b := brokertest.Start(t, func(c *broker.Config) { c.Logger = zap.New(core) })
	good := dial(t, b)
	require.Zero(t, good.call(10, sendExt("orders"), []byte("x")).Code)
	u32 := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	lyingBatch := append(append(u32(1000), make([]byte, 18)...), 'x')
	negativeBody := append(append(u32(22), make([]byte, 12)...), append(u32(0xFFFFFFFF), 0, 0)...)
	for name, bytes := range map[string][]byte{
		"negative length":       u32(0xFFFFFFF0),
		"zero length":           u32(0),
		"oversized":             u32(1 << 30),
		"header past the frame": append(u32(8), append(u32(100), 0, 0, 0, 0)...),
		"binary serializer":     append(u32(8), append(u32(1<<24|4), 0, 0, 0, 0)...),
		"not JSON":              frame("{nope", nil),
		"bad extFields":         frame(`{"code":10,"extFields":{"topic":7}}`, nil),
		"extFields is a list":   frame(`{"code":10,"extFields":[1]}`, nil),
		"HTTP":                  []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"batch length lies":     frame(`{"code":320,"extFields":{"a":"pg","b":"orders","e":"0"}}`, lyingBatch),
		"batch body negative":   frame(`{"code":320,"extFields":{"a":"pg","b":"orders","e":"0"}}`, negativeBody),
		"heartbeat not JSON":    frame(`{"code":34}`, []byte("{")),
		"lock body not JSON":    frame(`{"code":41}`, []byte("[]]")),
	} {
		before := logs.Len()
		bad := dial(t, b)
		bad.raw(bytes)
		bad.requireClosed()
		require.Equal(t, before+1, logs.Len(), "%s: one line", name)
		require.Equal(t, "closing client connection", logs.All()[before].Message, name)
	}
	require.Zero(t, good.call(10, sendExt("orders"), []byte("y")).Code, "other connections go on")
	require.EqualValues(t, 2, count(b, "orders"))
}

func TestBadFieldsAreAnswered(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	w := dial(t, b)
	for name, tc := range map[string]struct {
		code, want int
		change     map[string]string
	}{
		"queue not a number":  {10, 1, map[string]string{"queueId": "x"}},
		"queue out of range":  {10, 1, map[string]string{"queueId": "99"}},
		"no topic":            {10, 1, map[string]string{"topic": ""}},
		"illegal topic":       {10, 1, map[string]string{"topic": "a b"}},
		"system topic":        {10, 1, map[string]string{"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}},
		"properties too long": {10, 13, map[string]string{"properties": "k\x01" + strings.Repeat("v", 40000) + "\x02"}},
		"unsupported code":    {9999, 3, nil},
		"negative code":       {-1, 3, nil},
		"pull unknown topic":  {11, 17, map[string]string{"consumerGroup": "g", "topic": "nope"}},
		"end without offsets": {37, 1, map[string]string{"commitOrRollback": "8"}},
		"end of no half":      {37, 1, map[string]string{"commitOrRollback": "8", "tranStateTableOffset": "5", "commitLogOffset": "5"}},
		"end strange verdict": {37, 1, map[string]string{"commitOrRollback": "4", "tranStateTableOffset": "5", "commitLogOffset": "5"}},
		"send back nothing":   {36, 1, map[string]string{"group": "g", "offset": "123456"}},
		"view nothing":        {33, 1, map[string]string{"offset": "77"}},
		"no offset yet":       {14, 22, map[string]string{"consumerGroup": "g", "topic": "orders"}},
	} {
		ext := sendExt("orders")
		for k, v := range tc.change {
			ext[k] = v
		}
		require.Equal(t, tc.want, w.call(tc.code, ext, []byte("x")).Code, name)
	}
	ext := sendExt("orders")
	require.Equal(t, 13, w.call(10, ext, make([]byte, 4<<20+1)).Code, "body too large")
	require.Zero(t, w.call(10, ext, []byte("fine")).Code, "the connection is still good")
}

func TestHandlerPanicIsAnswered(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.ErrorLevel)
	var once atomic.Bool
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Logger = zap.New(core)
		c.Hooks.StorageFault = func(string) error {
			if once.CompareAndSwap(false, true) {
				panic("boom")
			}
			return nil
		}
	})
	w := dial(t, b)
	require.Equal(t, 1, w.call(10, sendExt("orders"), []byte("x")).Code)
	require.Zero(t, w.call(10, sendExt("orders"), []byte("x")).Code)
	require.Equal(t, 1, logs.Filter(func(e observer.LoggedEntry) bool { return strings.Contains(e.Message, "storage write failed") }).Len())
}

func TestSendV2ViewAndQuery(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	w := dial(t, b)
	res := w.call(310, map[string]string{
		"a": "pg", "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1700000000000", "h": "0",
		"i": "UNIQ_KEY\x01id-1\x02KEYS\x01k1 k2\x02TAGS\x01t\x02", "j": "0", "k": "false", "l": "0", "m": "false", "n": "halfbox",
	}, []byte("body"))
	require.Zero(t, res.Code)
	require.Len(t, res.Ext["msgId"], 32)
	require.Equal(t, "id-1", res.Ext["transactionId"])
	require.Equal(t, "2", res.Ext["queueId"])
	m := messages(t, b, "orders")[0]
	view := w.call(33, map[string]string{"offset": "0"}, nil)
	require.Zero(t, view.Code)
	for _, key := range []string{"id-1", "k1", "k2"} {
		q := w.call(12, map[string]string{"topic": "orders", "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9999999999999"}, nil)
		require.Zero(t, q.Code, key)
		require.Equal(t, view.body, q.body)
	}
	require.Equal(t, 22, w.call(12, map[string]string{"topic": "orders", "key": "k3", "maxNum": "32"}, nil).Code)
	require.Equal(t, "t", m.Tags)
	off := w.call(29, map[string]string{"topic": "orders", "queueId": "2", "timestamp": "0"}, nil)
	require.Equal(t, "0", off.Ext["offset"])
	off = w.call(29, map[string]string{"topic": "orders", "queueId": "2", "timestamp": "99999999999999"}, nil)
	require.Equal(t, "1", off.Ext["offset"])
	require.Equal(t, "1", w.call(30, map[string]string{"topic": "orders", "queueId": "2"}, nil).Ext["offset"])
	require.Equal(t, "0", w.call(31, map[string]string{"topic": "orders", "queueId": "2"}, nil).Ext["offset"])
}

func TestAdvertise(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Listen, c.Advertise, c.BrokerName = "0.0.0.0:0", "10.1.2.3:19876", "one"
	})
	require.Contains(t, b.Addr(), "127.0.0.1:")
	w := dial(t, b)
	route := string(w.call(105, map[string]string{"topic": "orders"}, nil).body)
	require.Contains(t, route, `"brokerAddrs":{"0":"10.1.2.3:19876"}`)
	require.Contains(t, route, `"brokerName":"one"`)
	id := w.call(10, sendExt("orders"), []byte("x")).Ext["msgId"]
	require.True(t, strings.HasPrefix(id, "0A010203"+"00004DA4"), id)
}

func TestPullCodes(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	w := dial(t, b)
	ext := sendExt("orders")
	ext["properties"] = "TAGS\x01a\x02"
	for range 3 {
		require.Zero(t, w.call(10, ext, []byte("x")).Code)
	}
	pull := func(offset, subscription string) reply {
		return w.call(11, map[string]string{
			"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": offset, "maxMsgNums": "32", "sysFlag": "4",
			"subscription": subscription, "expressionType": "TAG",
		}, nil)
	}
	for _, tc := range []struct {
		offset, sub string
		code        int
		next        string
	}{
		{"0", "*", 0, "3"},
		{"1", "a || b", 0, "3"},
		{"0", "b", 20, "3"},
		{"3", "*", 19, "3"},
		{"99", "*", 21, "0"},
		{"-5", "*", 21, "0"},
	} {
		r := pull(tc.offset, tc.sub)
		require.Equal(t, tc.code, r.Code, "offset %s", tc.offset)
		require.Equal(t, tc.next, r.Ext["nextBeginOffset"], "offset %s", tc.offset)
		require.Equal(t, "3", r.Ext["maxOffset"])
	}
}

// A delayed answer holds up neither another connection nor another request of
// the same connection; neither does a pull that waits.
func TestDelayHoldsUpNothing(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) {
		c.Hooks.OnRequest = func(r broker.Request) broker.Action {
			switch r.Topic {
			case "slow":
				return broker.Action{Delay: time.Hour}
			case "late":
				return broker.Action{Delay: 50 * time.Millisecond}
			case "refused":
				return broker.Action{Code: 2, Remark: "busy"}
			case "cut":
				return broker.Action{Disconnect: true}
			}
			return broker.Action{}
		}
	})
	w := dial(t, b)
	w.request(10, sendExt("slow"), []byte("x"))
	require.Zero(t, w.call(10, sendExt("fast"), []byte("x")).Code)
	require.Zero(t, dial(t, b).call(10, sendExt("fast"), []byte("x")).Code)
	require.Zero(t, w.call(10, sendExt("late"), []byte("x")).Code)
	require.EqualValues(t, 1, count(b, "late"))
	refused := w.call(10, sendExt("refused"), []byte("x"))
	require.Equal(t, 2, refused.Code)
	require.Equal(t, "busy", refused.Remark)
	w.request(10, sendExt("cut"), []byte("x"))
	w.requireClosed()
	require.Zero(t, count(b, "refused")+count(b, "cut")+count(b, "slow"))
}

func TestQueueLocksAndTopicAdmin(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) { c.DisableTopicAutoCreate = true })
	w := dial(t, b)
	require.Equal(t, 17, w.call(105, map[string]string{"topic": "orders"}, nil).Code)
	require.Equal(t, 17, w.call(105, map[string]string{"topic": "TBW102"}, nil).Code)
	require.Equal(t, 17, w.call(10, sendExt("orders"), []byte("x")).Code)
	require.Zero(t, w.call(105, map[string]string{"topic": "%RETRY%g"}, nil).Code)
	require.Zero(t, w.call(17, map[string]string{"topic": "orders", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}, nil).Code)
	route := w.call(105, map[string]string{"topic": "orders"}, nil)
	require.Contains(t, string(route.body), `"brokerAddrs":{"0":"`+b.Addr()+`"}`)
	require.JSONEq(t, `{"topicList":["orders"],"brokerAddr":"`+b.Addr()+`"}`, string(w.call(206, nil, nil).body))

	lock := func(client string) string {
		body := `{"consumerGroup":"g","clientId":"` + client + `","mqSet":[{"topic":"orders","brokerName":"halfbox","queueId":0}]}`
		return string(w.call(41, nil, []byte(body)).body)
	}
	require.Contains(t, lock("one"), `"queueId":0`)
	require.JSONEq(t, `{"lockOKMQSet":[]}`, lock("two"))
	require.Contains(t, lock("one"), `"queueId":0`, "renewed")
	w.call(42, nil, []byte(`{"consumerGroup":"g","clientId":"one","mqSet":[{"topic":"orders","brokerName":"halfbox","queueId":0}]}`))
	require.Contains(t, lock("two"), `"queueId":0`)
}

// A client that does not read is disconnected; others do not notice.
func TestSlowReaderIsDisconnected(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t, func(c *broker.Config) { c.Logger = zap.NewNop() })
	good, slow := dial(t, b), dial(t, b)
	ext := sendExt("orders")
	for range 4 {
		require.Zero(t, good.call(10, ext, make([]byte, 256<<10)).Code)
	}
	require.NoError(t, slow.c.SetWriteDeadline(time.Now().Add(patience)))
	header, err := json.Marshal(map[string]any{"code": 11, "opaque": 1, "extFields": map[string]string{
		"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
	}})
	require.NoError(t, err)
	for err == nil { // about 1 MiB for each of these, never read
		_, err = slow.c.Write(frame(string(header), nil))
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Zero(t, good.call(10, ext, []byte("x")).Code)
}

// A consumer that asks for its group before it is a member keeps its queues:
// no list without itself reaches it while it waits.
func TestConsumerListWaitsForTheHeartbeat(t *testing.T) {
	t.Parallel()
	b := brokertest.Start(t)
	w := dial(t, b)
	heartbeat := `{"clientID":"c1","producerDataSet":[],"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"orders","subString":"*","expressionType":"TAG"}]}]}`
	group := map[string]string{"consumerGroup": "g"}
	// In one piece: the first question is open for a few seconds only.
	early := w.encode(38, group, nil)
	earlyID := w.opaque
	w.raw(append(early, w.encode(34, nil, []byte(heartbeat))...))
	beat := w.opaque
	list := w.request(38, group, nil)
	answers, told := map[int]reply{}, 0
	for len(answers) < 3 || told == 0 { // the early one comes late, but before which of the others is the clock's to say
		if r := w.read(); r.Code == 40 {
			require.Contains(t, answers, beat, "a client takes itself for registered when it is told")
			told++
		} else {
			answers[r.Opaque] = r
		}
	}
	require.Equal(t, 1, told, "it is told to look again")
	require.Zero(t, answers[beat].Code)
	require.JSONEq(t, `{"consumerIdList":["c1"]}`, string(answers[list].body))
	require.JSONEq(t, `{"consumerIdList":["c1"]}`, string(answers[earlyID].body))
	other := dial(t, b)
	require.Zero(t, other.call(34, nil, []byte(strings.Replace(heartbeat, "c1", "c2", 1))).Code)
	require.Equal(t, 40, w.read().Code, "a new member is announced")
	require.NoError(t, other.c.Close())
	require.Equal(t, 40, w.read().Code, "and one that left")
	require.Zero(t, w.call(35, map[string]string{"clientID": "c1", "consumerGroup": "g"}, nil).Code)
	require.False(t, b.HasConsumer("g"))
}
