package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
)

func TestMain(m *testing.M) {
	// Each check is a schedule of dozens of statements; -rapid.checks asks for more of them.
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// engine is one empty database with the tables of these tests; every open is a process's own view of it.
type engine struct {
	name  string
	dsn   string // or the path of the file
	modes []ClaimMode
	open  func(t testing.TB, o database.Options) *database.DB
}

// onEngines runs the test on SQLite, and on MySQL where there is one, see package enginetest.
func onEngines(t *testing.T, test func(t *testing.T, e *engine)) {
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(t, newSQLite(t)) })
	t.Run("mysql", func(t *testing.T) { t.Parallel(); test(t, newMySQL(t)) })
}

// onModes runs the test for every way to claim that each engine has.
func onModes(t *testing.T, test func(t *testing.T, e *engine, mode ClaimMode)) {
	onEngines(t, func(t *testing.T, e *engine) {
		for _, mode := range e.modes {
			t.Run(string(mode), func(t *testing.T) {
				db := e.db(t)
				require.NoError(t, db.Write.Exec("DELETE FROM t_event_record").Error)
				test(t, e, mode)
			})
		}
	})
}

func newSQLite(t testing.TB) *engine {
	path := filepath.Join(t.TempDir(), "test.db")
	e := &engine{name: "sqlite", dsn: path, modes: []ClaimMode{ClaimConditionalUpdate}, open: func(t testing.TB, o database.Options) *database.DB {
		if before := o.Hooks.Before; before != nil {
			o.Hooks.Before = func(op database.Op, query string) error {
				if strings.HasPrefix(query, "PRAGMA") {
					return nil
				}
				return before(op, query)
			}
		}
		db, err := database.OpenSQLite(path, patient(o))
		require.NoError(t, err)
		if _, bench := t.(*testing.B); !bench {
			// No test cuts the power, so the disk need not be waited for.
			_, err := db.SQL().Exec("PRAGMA synchronous = OFF")
			require.NoError(t, err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}}
	e.migrate(t)
	return e
}

func newMySQL(t testing.TB) *engine {
	dsn := enginetest.MySQL(t)
	e := &engine{name: "mysql", dsn: dsn, modes: []ClaimMode{ClaimSkipLocked, ClaimConditionalUpdate}, open: func(t testing.TB, o database.Options) *database.DB {
		db, err := database.OpenMySQL(dsn, patient(o))
		require.NoError(t, err)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}}
	e.migrate(t)
	return e
}

// patient lets statements wait for a lock for as long as a busy machine may hold it, unless the wait is a test's matter.
func patient(o database.Options) database.Options {
	o.LockWait = cmp.Or(o.LockWait, 20*time.Second)
	return o
}

func (e *engine) migrate(t testing.TB) {
	db := e.db(t)
	require.NoError(t, db.Migrate(t.Context(), Migrations()))
	require.NoError(t, db.Write.Exec("CREATE TABLE t_local (msg_id VARCHAR(64) NOT NULL PRIMARY KEY, delivery VARCHAR(16) NOT NULL)").Error)
}

func (e *engine) db(t testing.TB) *database.DB { return e.open(t, database.Options{}) }

// insertLocal is the local transaction of these tests.
func insertLocal(tx *gorm.DB, at halfbox.Attempt) error {
	return tx.Exec("INSERT INTO t_local (msg_id, delivery) VALUES (?, ?)", at.MsgID, at.Delivery).Error
}

func event(subject string) halfbox.Event {
	return halfbox.Event{
		Type: "order.created", Source: "/test", Subject: subject, Time: time.Now(), DataSchema: "urn:halfbox:schema:test:1",
		AggregateVersion: 1, PartitionKey: subject, Data: json.RawMessage(`{"n":1}`),
	}
}

func newTestWriter(t testing.TB, db *database.DB, change ...func(*WriterConfig)) *Writer {
	cfg := WriterConfig{DB: db, Sink: "main", Destination: "TOPIC"}
	for _, c := range change {
		c(&cfg)
	}
	w, err := NewWriter(cfg)
	require.NoError(t, err)
	return w
}

// write commits n events with subjects prefix0, prefix1, ... and returns their message ids.
func write(t testing.TB, db *database.DB, prefix string, n int) []string {
	w := newTestWriter(t, db)
	msgIDs := make([]string, n)
	for i := range msgIDs {
		receipt, err := w.PublishInTx(t.Context(), event(fmt.Sprint(prefix, i)), insertLocal)
		require.NoError(t, err)
		msgIDs[i] = receipt.MsgID
	}
	return msgIDs
}

// fakeSink is the far end: what it answers is up to the test.
type fakeSink struct {
	name   string
	answer func(ctx context.Context, batch []Record) error
	probe  func(ctx context.Context) error

	mu    sync.Mutex
	sends [][]Record
}

func newFakeSink(answer func(ctx context.Context, batch []Record) error) *fakeSink {
	return &fakeSink{name: "main", answer: answer}
}

func (s *fakeSink) Name() string { return s.name }

func (s *fakeSink) Send(ctx context.Context, batch []Record) error {
	s.mu.Lock()
	s.sends = append(s.sends, slices.Clone(batch))
	s.mu.Unlock()
	if s.answer == nil {
		return nil
	}
	return s.answer(ctx, batch)
}

// count is how often each subject was sent.
func (s *fakeSink) count() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for _, b := range s.sends {
		for _, r := range b {
			n[r.BizNo]++
		}
	}
	return n
}

// all are the batches sent.
func (s *fakeSink) all() [][]Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sends)
}

// sizes are the sizes of the batches sent.
func (s *fakeSink) sizes() []int {
	var n []int
	for _, b := range s.all() {
		n = append(n, len(b))
	}
	return n
}

// probedSink is a fakeSink that can be probed.
type probedSink struct{ *fakeSink }

func (s probedSink) Probe(ctx context.Context) error { return s.probe(ctx) }

// testConfig is a relay whose pauses are short. Its limits are not: a busy machine shall not reach them.
func testConfig(t testing.TB, db *database.DB, sinks ...Sink) RelayConfig {
	t.Helper()
	return RelayConfig{
		DB: db, Sinks: sinks, BatchMax: -1, Lease: time.Minute, SendTimeout: 20 * time.Second, StatementTimeout: 20 * time.Second,
		ReclaimInterval: 50 * time.Millisecond, BackoffBase: 5 * time.Millisecond, PollMin: 2 * time.Millisecond, PollMax: 20 * time.Millisecond,
		Breaker: BreakerConfig{OpenMin: 10 * time.Millisecond, OpenMax: 50 * time.Millisecond}, DrainRate: 10000,
		StatsInterval: 20 * time.Millisecond, Instance: "test", Logger: zap.NewNop(),
	}
}

func newTestRelay(t testing.TB, cfg RelayConfig) *Relay {
	t.Helper()
	r, err := NewRelay(cfg)
	require.NoError(t, err)
	return r
}

// caughtUp makes r a relay that was never away, so that each round is a batch of what is due.
func caughtUp(r *Relay) *Relay {
	for _, l := range r.loops {
		l.pace.stop()
	}
	return r
}

func start(t testing.TB, r *Relay) {
	t.Helper()
	require.NoError(t, r.Start())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, r.Stop(ctx))
	})
}

// once runs one round of the relay's first sink.
func once(t testing.TB, r *Relay) (roundResult, error) {
	return r.loops[0].runOnce(t.Context(), t.Context())
}

func mustOnce(t testing.TB, r *Relay) roundResult {
	t.Helper()
	res, err := once(t, r)
	require.NoError(t, err)
	return res
}

// untilIdle runs rounds until nothing is due, waiting out pauses.
func untilIdle(t testing.TB, r *Relay) {
	t.Helper()
	eventually(t, func() bool {
		res, err := once(t, r)
		return err == nil && res.claimed == 0 && res.pause == 0 && !res.more
	}, "idle")
}

func entries(t testing.TB, db *database.DB) []Entry {
	t.Helper()
	all, err := List(context.Background(), db, Filter{Limit: 1000})
	require.NoError(t, err)
	return all
}

func entryOf(t testing.TB, db *database.DB, subject string) Entry {
	t.Helper()
	found, err := List(context.Background(), db, Filter{BizNo: subject})
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

func countStatus(t testing.TB, db *database.DB, s Status) int {
	t.Helper()
	var n int64
	require.NoError(t, db.Read.Raw("SELECT COUNT(*) FROM t_event_record WHERE status = ?", s).Scan(&n).Error)
	return int(n)
}

// eventually waits for cond, which runs on the test's own goroutine and may therefore require things. Its limit is longer
// than a lease of testConfig: what a late answer of the database has left behind is sent when that is over.
func eventually(t testing.TB, cond func() bool, msg string) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !cond(); sleep(t.Context(), 2*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never happened: " + msg)
		}
	}
}

// makeDue takes every waiting row's backoff away.
func makeDue(t testing.TB, db *database.DB) {
	t.Helper()
	s := newStore(db)
	_, err := s.exec(t.Context(), "UPDATE t_event_record SET next_retry_time = {now+} WHERE status = 'WAIT'", db.Dialect.Offset(-time.Minute))
	require.NoError(t, err)
}

// expire ends every lease.
func expire(t testing.TB, db *database.DB) {
	t.Helper()
	s := newStore(db)
	_, err := s.exec(t.Context(), "UPDATE t_event_record SET lease_until = {now+} WHERE status = 'SENDING'", db.Dialect.Offset(-time.Second))
	require.NoError(t, err)
}
