package rocketmq_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/outbox"
	sinkrocketmq "github.com/halfbox/halfbox/outbox/sink/rocketmq"
)

// benchNumber is a size that the environment may change.
func benchNumber(b *testing.B, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(b, err)
	return n
}

func median[T int | float64 | time.Duration](of []T) T {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

// unpaced is a rate that no relay reaches: what is measured is what it can do.
const unpaced = 1_000_000

// drainBench is a backlog on MySQL that is drained to RocketMQ again and again.
type drainBench struct {
	db     *database.DB
	sink   *sinkrocketmq.Sink
	topic  string
	events int
}

// BenchmarkDrainBesideABareLoop drains HALFBOX_BENCH_EVENTS records (20,000) to RocketMQ, by a relay and by a bare loop of
// the same statements and batch sends, in turns for HALFBOX_BENCH_ROUNDS rounds (5), and reports the medians and their
// ratio. Run it with -benchtime 1x.
func BenchmarkDrainBesideABareLoop(b *testing.B) {
	d := newDrainBench(b)
	rounds := benchNumber(b, "HALFBOX_BENCH_ROUNDS", 5)
	for _, batch := range []int{20, 100, 500} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			for b.Loop() {
				var bare, relay []float64
				for i := range rounds {
					turns := []func(){
						func() { bare = append(bare, d.rate(b, func() { d.bareLoop(b, batch) })) },
						func() { relay = append(relay, d.rate(b, func() { d.relay(b, batch) })) },
					}
					if i%2 == 1 {
						slices.Reverse(turns)
					}
					turns[0]()
					turns[1]()
				}
				b.ReportMetric(median(bare), "bare/s")
				b.ReportMetric(median(relay), "relay/s")
				b.ReportMetric(100*median(relay)/median(bare), "%ofbare")
			}
		})
	}
}

func newDrainBench(b *testing.B) *drainBench {
	dsn, nameServers := enginetest.MySQL(b), enginetest.RocketMQ(b)
	db, err := database.OpenMySQL(dsn, database.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	require.NoError(b, db.Migrate(b.Context(), outbox.Migrations()))
	sink, err := sinkrocketmq.New(sinkrocketmq.Config{Name: "main", NameServers: nameServers, Group: enginetest.Group(b)})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, sink.Close(context.Background())) })
	return &drainBench{db: db, sink: sink, topic: enginetest.Topic(b, nameServers), events: benchNumber(b, "HALFBOX_BENCH_EVENTS", 20000)}
}

// fill makes the table anew with a backlog.
func (d *drainBench) fill(b *testing.B) {
	b.Helper()
	_, err := d.db.SQL().Exec("TRUNCATE t_event_record")
	require.NoError(b, err)
	payload := strings.Repeat("x", 500)
	const rows = 1000
	for from := 0; from < d.events; from += rows {
		var values []string
		var args []any
		for range min(rows, d.events-from) {
			id := uuid.Must(uuid.NewV7()).String()
			values = append(values, "(?, 'main', 'order.created', ?, 'outbox', ?, 1, ?, ?, ?, '{}', 'WAIT', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))")
			args = append(args, id, id, id, id, d.topic, payload)
		}
		_, err := d.db.SQL().Exec(`INSERT INTO t_event_record (msg_id, sink, event_type, biz_no, delivery, aggregate_id, aggregate_version, partition_key,
 destination, payload, headers, status, next_retry_time, created_at) VALUES `+strings.Join(values, ", "), args...)
		require.NoError(b, err)
	}
}

// rate is how many events per second drain relays.
func (d *drainBench) rate(b *testing.B, drain func()) float64 {
	b.Helper()
	d.fill(b)
	began := time.Now()
	drain()
	took := time.Since(began)
	var left int
	require.NoError(b, d.db.SQL().QueryRow("SELECT COUNT(*) FROM t_event_record WHERE status <> 'SUCCESS'").Scan(&left))
	require.Zero(b, left)
	return float64(d.events) / took.Seconds()
}

// countedSink closes done when it has confirmed so many events.
type countedSink struct {
	*sinkrocketmq.Sink
	left int
	done chan struct{}
}

func (s *countedSink) Send(ctx context.Context, batch []outbox.Record) error {
	err := s.Sink.Send(ctx, batch)
	if err == nil {
		if s.left -= len(batch); s.left <= 0 {
			close(s.done)
		}
	}
	return err
}

func (d *drainBench) relay(b *testing.B, batch int) {
	b.Helper()
	sink := &countedSink{Sink: d.sink, left: d.events, done: make(chan struct{})}
	relay, err := outbox.NewRelay(outbox.RelayConfig{DB: d.db, Sinks: []outbox.Sink{sink}, Batch: batch, BatchMax: -1, DrainRate: unpaced})
	require.NoError(b, err)
	require.NoError(b, relay.Start())
	<-sink.done
	require.NoError(b, relay.Stop(context.Background()))
}

// bareLoop claims, sends and marks by the relay's own statements, with nothing for when something goes wrong.
func (d *drainBench) bareLoop(b *testing.B, batch int) {
	b.Helper()
	for n := 0; ; n++ {
		ids, records := d.bareClaim(b, fmt.Sprint("bare-", n), batch)
		if len(ids) == 0 {
			return
		}
		require.NoError(b, d.sink.Send(b.Context(), records))
		_, err := d.db.SQL().Exec(`UPDATE t_event_record FORCE INDEX (PRIMARY) SET status = 'SUCCESS', lease_until = NULL, sent_at = ?
 WHERE id IN (?`+strings.Repeat(", ?", len(ids)-1)+`) AND status = 'SENDING' AND claim_owner = ?`,
			append(append([]any{time.Now().UTC()}, ids...), fmt.Sprint("bare-", n))...)
		require.NoError(b, err)
	}
}

func (d *drainBench) bareClaim(b *testing.B, owner string, batch int) (ids []any, records []outbox.Record) {
	b.Helper()
	tx, err := d.db.SQL().BeginTx(b.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	require.NoError(b, err)
	rows, err := tx.Query(`SELECT id, msg_id, event_type, biz_no, destination, payload FROM t_event_record FORCE INDEX (idx_status_next_retry)
 WHERE status = 'WAIT' AND sink = 'main' AND next_retry_time <= UTC_TIMESTAMP(6) ORDER BY next_retry_time, id LIMIT ? FOR UPDATE SKIP LOCKED`, batch)
	require.NoError(b, err)
	defer func() { require.NoError(b, rows.Close()) }()
	for rows.Next() {
		var id int64
		var r outbox.Record
		require.NoError(b, rows.Scan(&id, &r.MsgID, &r.EventType, &r.BizNo, &r.Destination, &r.Payload))
		ids, records = append(ids, id), append(records, r)
	}
	require.NoError(b, rows.Err())
	if len(ids) > 0 {
		_, err = tx.Exec(`UPDATE t_event_record FORCE INDEX (PRIMARY) SET status = 'SENDING', claim_owner = ?, claimed_at = UTC_TIMESTAMP(6),
 lease_until = UTC_TIMESTAMP(6) + INTERVAL 600 SECOND WHERE id IN (?`+strings.Repeat(", ?", len(ids)-1)+`) AND status = 'WAIT'`,
			append([]any{owner}, ids...)...)
		require.NoError(b, err)
	}
	require.NoError(b, tx.Commit())
	return ids, records
}

// timedSink notes when each event was confirmed.
type timedSink struct {
	*sinkrocketmq.Sink
	mu sync.Mutex
	at map[string]time.Time
}

func (s *timedSink) Send(ctx context.Context, batch []outbox.Record) error {
	err := s.Sink.Send(ctx, batch)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range batch {
		if err == nil {
			s.at[r.MsgID] = now
		}
	}
	return err
}

func (s *timedSink) confirmed() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.at) }

// BenchmarkCommitToBroker writes 200 events a second and reports how long after its commit an event is confirmed by the
// broker, with a relay that is nudged and with one that polls.
func BenchmarkCommitToBroker(b *testing.B) {
	d := newDrainBench(b)
	for name, nudged := range map[string]bool{"one process": true, "apart": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				waits := d.latencies(b, nudged, benchNumber(b, "HALFBOX_BENCH_LATENCIES", 1000))
				slices.Sort(waits)
				b.ReportMetric(float64(median(waits).Microseconds())/1000, "p50ms")
				b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds())/1000, "p99ms")
			}
		})
	}
}

func (d *drainBench) latencies(b *testing.B, nudged bool, n int) []time.Duration {
	b.Helper()
	sink := &timedSink{Sink: d.sink, at: map[string]time.Time{}}
	relay, err := outbox.NewRelay(outbox.RelayConfig{DB: d.db, Sinks: []outbox.Sink{sink}})
	require.NoError(b, err)
	require.NoError(b, relay.Start())
	cfg := outbox.WriterConfig{DB: d.db, Sink: "main", Destination: d.topic}
	if nudged {
		cfg.Nudge = relay.Nudge
	}
	w, err := outbox.NewWriter(cfg)
	require.NoError(b, err)
	committed := map[string]time.Time{}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range n {
		<-tick.C
		receipt, err := w.PublishInTx(b.Context(), halfbox.Event{
			Type: "order.created", Source: "/bench", Subject: uuid.NewString(), Time: time.Now(), DataSchema: "urn:halfbox:schema:bench:1",
			AggregateVersion: 1, Data: []byte(`{}`),
		}, func(*gorm.DB, halfbox.Attempt) error { return nil })
		require.NoError(b, err)
		committed[receipt.MsgID] = time.Now()
	}
	require.Eventually(b, func() bool { return sink.confirmed() == n }, time.Minute, time.Millisecond)
	require.NoError(b, relay.Stop(context.Background()))
	waits := make([]time.Duration, 0, n)
	for id, at := range committed {
		waits = append(waits, max(0, sink.at[id].Sub(at)))
	}
	return waits
}
