package txmsg

import (
	"sync"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
)

// The client may call back at any time, however late. Exactly one of "runs" and "abandoned" may win.
func TestAttemptIsLocalOrAbandoned(t *testing.T) {
	t.Parallel()
	for range 2000 {
		a, err := newAttempt(t.Context(), nil)
		require.NoError(t, err)
		var began, abandoned bool
		var wg sync.WaitGroup
		wg.Go(func() { began = a.begin() })
		wg.Go(func() { abandoned = a.abandon() })
		wg.Wait()
		require.NotEqual(t, began, abandoned)
		require.False(t, a.begin(), "no second time")
		require.False(t, a.abandon())
	}
}

func TestLateAcknowledgementRunsNothing(t *testing.T) {
	t.Parallel()
	m, err := newMetrics(prometheus.NewRegistry())
	require.NoError(t, err)
	p := &Producer{cfg: Config{Logger: zap.NewNop()}, metrics: m}
	ran := false
	a, err := newAttempt(t.Context(), func(*gorm.DB, halfbox.Attempt) error { ran = true; return nil })
	require.NoError(t, err)
	ack := &primitive.Message{TransactionId: a.MsgID}

	p.attempts.Store(a.MsgID, a)
	require.True(t, a.abandon())
	require.Equal(t, primitive.RollbackMessageState, newListener(p).ExecuteLocalTransaction(ack), "abandoned, still listed")
	p.attempts.Delete(a.MsgID)
	require.Equal(t, primitive.RollbackMessageState, newListener(p).ExecuteLocalTransaction(ack), "forgotten")
	require.False(t, ran)
	require.InDelta(t, 2, testutil.ToFloat64(m.lateAcks), 0)
}
