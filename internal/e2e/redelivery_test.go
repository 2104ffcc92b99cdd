package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
)

const (
	redeliveryCallers    = 16
	redeliveryLoad       = 15 * time.Second // at least
	redeliveryLoadMax    = 45 * time.Second // until there are enough duplicates
	redeliveryMinDoubles = 50
)

// A broker that is set up to deliver committed messages again, under load: it asks about half messages after a second
// but writes down which ones have ended only every five, so it asks about committed ones too and delivers each
// answer. Every order is credited once, and the duplicates are counted.
func TestEnginesRedelivery(t *testing.T) {
	t.Parallel()
	q := enginetest.OwnRocketMQ(t, "transactionTimeOut=1000", "transactionCheckInterval=1000", "transactionOpBatchInterval=5000")
	s := newRealSite(t, enginetest.MySQL(t), enginetest.MySQL(t), q.NameServers())
	p := s.serve(t, []string{"HALFBOX_TXMSG_LOCAL_TIMEOUT=900ms"})
	require.NotNil(t, p)
	doubles := func() float64 { return labelled(t, p, "halfbox_points_messages_total", "outcome", "duplicate_msg_id") }

	began := time.Now()
	all, byTxmsg := hammer(t, p.api, func() bool {
		d := time.Since(began)
		return d < redeliveryLoad || d < redeliveryLoadMax && doubles() < redeliveryMinDoubles
	})
	took := time.Since(began)
	s.requireSettled(t)
	// The broker goes on asking until it has written down what has ended.
	require.Eventually(t, func() bool { return doubles() >= redeliveryMinDoubles }, wait, 10*tick,
		"too few messages were delivered twice: the load proves nothing: %v", lazy(func() string { return fmt.Sprint(doubles()) }))
	t.Logf("%d orders in %v from %d callers (%d by txmsg), %.0f check-backs answered COMMIT, %.0f messages delivered again",
		len(all), took.Round(time.Second), redeliveryCallers, byTxmsg,
		labelled(t, p, "halfbox_checkback_answers_total", "answer", "commit"), doubles())
	require.Zero(t, p.stop(t))
	s.requireBooks(t, all)
}

// hammer asks for orders by txmsg from many callers while more tells so, each key once and again until it is answered.
func hammer(t *testing.T, api string, more func() bool) (all []wish, byTxmsg int) {
	t.Helper()
	stop := make(chan struct{})
	made := make([][]wish, redeliveryCallers)
	via := make([]int, redeliveryCallers)
	// Connections are kept: the load is on the broker, not on the making of connections.
	client := &http.Client{Timeout: wait, Transport: &http.Transport{MaxIdleConnsPerHost: redeliveryCallers}}
	defer client.CloseIdleConnections()
	var callers sync.WaitGroup
	for c := range redeliveryCallers {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				w := wish{Key: fmt.Sprintf("k-%d-%d", c, n), UserID: int64(1 + c), Amount: int64(100 + n), Delivery: "txmsg"}
				made[c] = append(made[c], w)
				for {
					a, err := w.postWith(client, api)
					if err == nil && (a.Status == http.StatusCreated || a.Status == http.StatusOK) {
						if a.Via == "txmsg" {
							via[c]++
						}
						break
					}
					if err != nil || a.Status != http.StatusServiceUnavailable {
						t.Errorf("%s: %+v, %v", w.Key, a, err)
						return
					}
				}
			}
		})
	}
	look := time.NewTicker(250 * time.Millisecond)
	defer look.Stop()
	for more() {
		<-look.C
	}
	close(stop)
	callers.Wait()
	for c := range made {
		all = append(all, made[c]...)
		byTxmsg += via[c]
	}
	return all, byTxmsg
}
