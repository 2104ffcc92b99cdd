package outboxtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/localtx"
	"github.com/halfbox/halfbox/outbox"
	"github.com/halfbox/halfbox/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func onEngines(t *testing.T, test func(t *testing.T, db *localtx.DB)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) (*localtx.DB, error){
		"sqlite": func(t *testing.T) (*localtx.DB, error) {
			return localtx.OpenSQLite(filepath.Join(t.TempDir(), "o.db"), localtx.Options{})
		},
		"mysql": func(t *testing.T) (*localtx.DB, error) {
			return localtx.OpenMySQL(enginetest.MySQL(t), localtx.Options{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, err := open(t)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			require.NoError(t, db.Migrate(t.Context(), outbox.Migrations()))
			test(t, db)
		})
	}
}

func publish(t *testing.T, db *localtx.DB, sink, typ, no string, result error) {
	t.Helper()
	w, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: sink, Destination: "T"})
	require.NoError(t, err)
	_, err = w.PublishInTx(t.Context(), halfbox.Event{
		Type: typ, Source: "/test", Subject: no, Time: time.Now(), DataSchema: "urn:test:1", AggregateVersion: 1, PartitionKey: "k-" + no,
		Data: json.RawMessage(`{"no":"` + no + `","cents":5}`),
	}, func(*gorm.DB, halfbox.Attempt) error { return result })
	require.ErrorIs(t, err, result)
}

// fakeTB is a test that is expected to fail.
type fakeTB struct {
	testing.TB
	text string
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *fakeTB) Fatal(args ...any) { f.Fatalf("%s", fmt.Sprint(args...)) }

// failure runs an assertion and returns what it failed with, empty when it did not.
func failure(t *testing.T, assert func(t testing.TB)) string {
	t.Helper()
	f := &fakeTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert(f)
	}()
	<-done
	return f.text
}

func TestAssertPublished(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, db *localtx.DB) {
		publish(t, db, "main", "order.created", "A1", nil)
		publish(t, db, "main", "order.created", "A2", errors.New("business says no"))
		p := outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Data(`{"cents":5, "no":"A1"}`), outboxtest.DataField("cents", 5),
			outboxtest.Sink("main"), outboxtest.Destination("T"), outboxtest.Key("k-A1"),
			outboxtest.Where("it waits", func(p outboxtest.Published) bool { return p.Entry.Status == outbox.StatusWait }))
		require.Equal(t, "A1", p.Event.Subject)
		require.NotEmpty(t, p.Entry.MsgID)
		outboxtest.AssertNotPublished(t, db, "order.created", "A2")
		outboxtest.AssertNotPublished(t, db, "order.created", "A1", outboxtest.DataField("cents", 6))

		for want, assert := range map[string]func(t testing.TB){
			"order.created of A2 was not published": func(t testing.TB) { outboxtest.AssertPublished(t, db, "order.created", "A2") },
			"of A1 there is order.created":          func(t testing.TB) { outboxtest.AssertPublished(t, db, "order.cancelled", "A1") },
			`data's "cents" is`: func(t testing.TB) {
				outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.DataField("cents", 6))
			},
			`data has no "x"`: func(t testing.TB) {
				outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.DataField("x", 6))
			},
			"data is":                     func(t testing.TB) { outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Data(`{}`)) },
			"wanted data is not":          func(t testing.TB) { outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Data(`{`)) },
			`sink is "main", not "other"`: func(t testing.TB) { outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Sink("other")) },
			`destination is "T"`: func(t testing.TB) {
				outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Destination("U"))
			},
			`partition key is "k-A1"`: func(t testing.TB) { outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Key("k")) },
			"not so: it is sent": func(t testing.TB) {
				outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Where("it is sent", func(outboxtest.Published) bool { return false }))
			},
			"was published: message": func(t testing.TB) { outboxtest.AssertNotPublished(t, db, "order.created", "A1") },
			"is not delivered":       func(t testing.TB) { outboxtest.AssertDelivered(t, db, "order.created", "A1") },
			"was not published":      func(t testing.TB) { outboxtest.AssertDelivered(t, db, "order.created", "A2") },
		} {
			require.Contains(t, failure(t, assert), want)
		}

		publish(t, db, "other", "order.created", "A1", nil)
		require.Contains(t, failure(t, func(t testing.TB) { outboxtest.AssertPublished(t, db, "order.created", "A1") }), "published 2 times")
		outboxtest.AssertPublished(t, db, "order.created", "A1", outboxtest.Sink("other"))
	})
}

func relay(t *testing.T, db *localtx.DB, sink outbox.Sink) {
	t.Helper()
	r, err := outbox.NewRelay(outbox.RelayConfig{
		DB: db, Sinks: []outbox.Sink{sink}, Lease: time.Hour, SendTimeout: 200 * time.Millisecond, StatementTimeout: 20 * time.Second,
		BackoffBase: time.Millisecond, PollMin: time.Millisecond, PollMax: 10 * time.Millisecond, Breaker: outbox.BreakerConfig{OpenMin: time.Millisecond, OpenMax: 5 * time.Millisecond},
	})
	require.NoError(t, err)
	require.NoError(t, r.Start())
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
}

func TestSinkFollowsItsScript(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, db *localtx.DB) {
		sink := outboxtest.NewSink("main").Then(
			outboxtest.Fail(outbox.Unreachable(errors.New("down"))), outboxtest.Hang(), outboxtest.OK(), outboxtest.Fail(outbox.Refused(errors.New("too large"))))
		publish(t, db, "main", "order.created", "A1", nil)
		relay(t, db, sink)
		outboxtest.AwaitDelivered(t, db, "order.created", "A1")
		outboxtest.AssertDelivered(t, db, "order.created", "A1")
		require.Equal(t, "A1", sink.Await(t, 1)[0].BizNo)
		require.Len(t, sink.Sends(), 3)
		require.Equal(t, "A1", sink.Events(t)[0].Subject)

		publish(t, db, "main", "order.created", "A2", nil)
		text := failure(t, func(t testing.TB) { outboxtest.AwaitDelivered(t, db, "order.created", "A2") })
		require.Contains(t, text, "is FAIL")
		require.Contains(t, text, "too large")
		sink.Always(outboxtest.FailFor("A3", outbox.Refused(errors.New("not A3"))))
		publish(t, db, "main", "order.created", "A4", nil)
		outboxtest.AwaitDelivered(t, db, "order.created", "A4")
		publish(t, db, "main", "order.created", "A3", nil)
		require.Contains(t, failure(t, func(t testing.TB) { outboxtest.AwaitDelivered(t, db, "order.created", "A3") }), "not A3")
		require.Len(t, sink.Confirmed(), 2)
	})
}
