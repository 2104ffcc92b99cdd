package broker_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/brokertest"
)

// The next offset of every answer is one that the next pull may ask for, also while messages are being stored: to
// the client "offset moved" means that it has to give the queue up and begin again.
func TestNextOffsetIsAlwaysLegal(t *testing.T) {
	t.Parallel()
	const n, codeSend, codePull, offsetMoved = 3000, 10, 11, 21
	b := brokertest.Start(t)
	require.Zero(t, dial(t, b).call(codeSend, sendExt("orders"), []byte("x")).Code)
	var senders sync.WaitGroup
	for range 8 { // so that a commit is always under way
		w := dial(t, b)
		senders.Go(func() {
			for range n / 8 {
				w.try(codeSend, sendExt("orders"))
			}
		})
	}
	puller := dial(t, b)
	for offset := int64(0); offset < n; {
		r := puller.call(codePull, map[string]string{
			"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": strconv.FormatInt(offset, 10),
			"maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "1000",
		}, nil)
		require.NotEqual(t, offsetMoved, r.Code, "at offset %d: %v", offset, r.Ext)
		next, err := strconv.ParseInt(r.Ext["nextBeginOffset"], 10, 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, next, offset)
		offset = next
	}
	senders.Wait()
}
