package remoting

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriteQueues(t *testing.T) {
	t.Parallel()
	const bare, quoted = "bare keys", "json"
	want := map[string][]Queue{
		bare:   {{"a", "127.0.0.1:10921", 0}, {"a", "127.0.0.1:10921", 1}, {"b", "127.0.0.1:10911", 0}},
		quoted: {{"a", "x:1", 0}, {"a", "x:1", 1}, {"b", "x:2", 0}},
	}
	writable := func(q queueData) int { return q.usable(permWrite, q.WriteQueueNums) }
	for name, body := range map[string]string{
		bare: `{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:10912"},"brokerName":"b","cluster":"c"},
 {"brokerAddrs":{0:"127.0.0.1:10921"},"brokerName":"a","cluster":"c"},{"brokerAddrs":{1:"127.0.0.1:10931"},"brokerName":"slave"},
 {"brokerAddrs":{0:"127.0.0.1:10941"},"brokerName":"full"}],
 "queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":1},{"brokerName":"a","perm":2,"writeQueueNums":2},
 {"brokerName":"slave","perm":6,"writeQueueNums":4},{"brokerName":"full","perm":4,"writeQueueNums":4}]}`,
		quoted: `{"brokerDatas":[{"brokerAddrs":{"0":"x:1"},"brokerName":"a"},{"brokerAddrs":{"0":"x:2"},"brokerName":"b"}],
 "queueDatas":[{"brokerName":"a","perm":6,"writeQueueNums":2},{"brokerName":"b","perm":6,"writeQueueNums":1}]}`,
	} {
		got, err := readRoute([]byte(body), writable)
		require.NoError(t, err, name)
		require.Equal(t, want[name], got, name)
	}
	_, err := readRoute([]byte("<html>"), writable)
	require.Error(t, err)
}
