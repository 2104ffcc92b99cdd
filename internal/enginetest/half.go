package enginetest

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/remoting"
)

// Half is a half message of a producer that nobody can ask.
type Half struct {
	Topic, Group      string
	MsgID, Tags, Keys string
	Body              []byte
	BornAt            time.Time // now when zero
}

// SendHalf stores a half message without any producer: only the message's own connection knew it, and is closed.
func SendHalf(t testing.TB, nameServer string, h Half) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), adminTimeout)
	defer cancel()
	queues, err := remoting.Queues(ctx, nameServer, h.Topic, remoting.Credentials{})
	require.NoError(t, err)
	require.NotEmpty(t, queues, "topic %s", h.Topic)
	if h.BornAt.IsZero() {
		h.BornAt = time.Now()
	}
	properties := ""
	for _, p := range [][2]string{
		{remoting.PropertyTransaction, "true"},
		{remoting.PropertyProducerGroup, h.Group},
		{remoting.PropertyUniqueKey, h.MsgID},
		{remoting.PropertyTags, h.Tags},
		{remoting.PropertyKeys, h.Keys},
	} {
		if p[1] != "" {
			properties += p[0] + "\x01" + p[1] + "\x02"
		}
	}
	c, err := remoting.Dial(ctx, queues[0].Addr, remoting.Credentials{}) // a single question would have 5 s, the disk included
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	const half = "4" // a system flag
	a, err := c.AskWithBody(ctx, remoting.CodeSend, map[string]string{
		"producerGroup": h.Group, "topic": h.Topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
		"sysFlag": half, "bornTimestamp": strconv.FormatInt(h.BornAt.UnixMilli(), 10), "flag": "0", "properties": properties,
		"reconsumeTimes": "0", "unitMode": "false", "maxReconsumeTimes": "0", "batch": "false",
	}, h.Body)
	require.NoError(t, err)
	require.Zero(t, a.Code, "half message refused: %s", a.Remark)
}

// DiscardedTopic is where brokers put half messages that they have given up on.
const DiscardedTopic = "TRANS_CHECK_MAX_TIME_TOPIC"

// Discarded returns the ids of a producer group's half messages that the broker has given up on, in their order. It is
// asked until all are there: a question that is not answered in time finds none.
func Discarded(t testing.TB, nameServer, group string) (ids []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), adminTimeout)
	defer cancel()
	all, err := ReadTopic(ctx, nameServer, DiscardedTopic)
	if err != nil {
		t.Log(err)
		return nil
	}
	for _, m := range all {
		if m.Properties[remoting.PropertyProducerGroup] == group {
			ids = append(ids, m.Properties[remoting.PropertyUniqueKey])
		}
	}
	return ids
}
