package checkback_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/checkback/txlog"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

// spoiler is a wire to a broker on which some stored messages are damaged.
type spoiler struct {
	listener net.Listener

	mu     sync.Mutex
	target string
	damage map[string]func(record []byte) // by a text in the message
}

func newSpoiler(t testing.TB) *spoiler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &spoiler{listener: l, damage: map[string]func([]byte){}}
	var conns sync.WaitGroup
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		conns.Wait()
	})
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { s.serve(conn) })
		}
	})
	return s
}

func (s *spoiler) to(target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = target
}

func (s *spoiler) on(text string, damage func(record []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damage[text] = damage
}

func (s *spoiler) serve(client net.Conn) {
	defer client.Close()
	s.mu.Lock()
	target := s.target
	s.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	for {
		var size [4]byte
		if _, err := io.ReadFull(server, size[:]); err != nil {
			break
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(server, frame); err != nil {
			break
		}
		s.spoil(frame)
		if _, err := client.Write(append(size[:], frame...)); err != nil {
			break
		}
	}
	_ = client.Close()
	asking.Wait()
}

func (s *spoiler) spoil(frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text, damage := range s.damage {
		if at := bytes.Index(frame, []byte(text)); at >= 0 {
			if magic := bytes.LastIndex(frame[:at], []byte{0xDA, 0xA3, 0x20, 0xA7}); magic >= 4 {
				damage(frame[magic-4:])
			}
		}
	}
}

// A record of the broker's storage that cannot be read is kept, and does not hold the next ones up.
func TestRescueMovesPastMalformedRecords(t *testing.T) {
	t.Parallel()
	wire := newSpoiler(t)
	b := quickBroker(t, func(c *broker.Config) { c.Advertise = wire.listener.Addr().String() })
	wire.to(b.Addr())
	w := newWorld(t, newSQLite(t), b.Addr())
	db := w.open(t, database.Options{})
	first, err := w.order(t, db, nil)
	require.NoError(t, err)
	magic, length := w.absent(t), w.absent(t)
	last, err := w.order(t, db, nil)
	require.NoError(t, err)
	w.discarded(t)
	wire.on(magic.MsgID, func(record []byte) { record[4] ^= 1 })
	wire.on(length.MsgID, func(record []byte) { record[0] = 0x7F }) // longer than everything that was read
	r := w.rescue(t, database.Options{})
	eventually(t, func() bool { return r.outcome(t, "republished") == 2 }, "the last one is not rescued")
	require.Equal(t, 2, r.outcome(t, "dead_letter"))
	require.Len(t, records(t, db), 2)
	require.Contains(t, records(t, db), first.MsgID)
	require.Contains(t, records(t, db), last.MsgID)
	require.Equal(t, "4", w.position(t, db))
	var letters []struct {
		MsgID, Reason string
		Payload       []byte
	}
	require.NoError(t, db.Read.Raw("SELECT msg_id, reason, payload FROM t_dead_letter ORDER BY msg_id").Scan(&letters).Error)
	require.Len(t, letters, 2)
	for i, id := range []string{magic.MsgID, length.MsgID} {
		require.Equal(t, "halfbox/0@"+string(rune('1'+i)), letters[i].MsgID)
		require.Contains(t, letters[i].Reason, "malformed stored message")
		require.Contains(t, string(letters[i].Payload), id, "an operator can look for what it was")
		require.NotContains(t, string(letters[i].Payload), last.MsgID, "and for nothing else")
	}
	require.Zero(t, rows(t, db, "status = 'VOID'"), "nothing is guessed about them")
}

// What no database can be asked about, whatever it is, does not hold the next ones up.
func TestRescueMovesPastWhatNoAttemptCanBe(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		db := w.open(t, database.Options{})
		ev := halfbox.Event{
			Type: order.EventCreated, Source: order.EventSource, Subject: "X", DataSchema: order.EventSchema, Time: time.Now(), Data: []byte("{}"),
		}
		send := func(id, subject string) {
			ev.Subject = "X"
			body, err := halfbox.Encode(ev, id)
			require.NoError(t, err)
			body = bytes.Replace(body, []byte(`"subject":"X"`), []byte(`"subject":"`+subject+`"`), 1)
			ev.Subject = subject
			w.half(t, halfbox.Event{Type: ev.Type, Source: ev.Source, Subject: "X", Time: ev.Time, Data: ev.Data}, halfbox.Attempt{MsgID: id}, func(h *enginetest.Half) {
				h.Keys, h.Body = subject, body
			})
		}
		send(strings.Repeat("7", 40), "LONG-ID")
		send("Ж"+newAttempt(t).MsgID[2:], "ID-NOT-ASCII")
		send(newAttempt(t).MsgID, strings.Repeat("S", 300))
		unicode := newAttempt(t)
		send(unicode.MsgID, "заказ")
		w.discarded(t)
		o, err := w.order(t, db, nil)
		require.NoError(t, err)
		w.discarded(t)
		r := w.rescue(t, database.Options{})
		eventually(t, func() bool { return r.outcome(t, "republished") == 1 }, "the last one is not rescued")
		require.Equal(t, 3, r.outcome(t, "dead_letter"))
		require.Equal(t, 1, r.outcome(t, "rolled_back"), "no order has such a number")
		require.Equal(t, 1, rows(t, db, "status = 'VOID' AND msg_id = ?", unicode.MsgID))
		require.Contains(t, records(t, db), o.MsgID)
	})
}

// A half message that is older than what t_tx_log keeps: its row may have been purged, so its absence proves nothing.
func TestRescueOfWhatMayHaveBeenPurged(t *testing.T) {
	t.Parallel()
	onWorlds(t, rescueMayHaveBeenPurged)
}

func rescueMayHaveBeenPurged(t *testing.T, w world) {
	db := w.open(t, database.Options{})
	require.NoError(t, db.Migrate(t.Context(), txlog.Migrations()))
	cancelled := func(born time.Time) halfbox.Attempt {
		at := newAttempt(t)
		w.half(t, halfbox.Event{Type: order.EventCancelled, Source: order.EventSource, Subject: "X", Time: born, Data: []byte("{}")}, at,
			func(h *enginetest.Half) { h.BornAt = born })
		return at
	}
	old, young := cancelled(time.Now().Add(-txlog.MinRetention-time.Hour)), cancelled(time.Now().Add(-time.Hour))
	known := cancelled(time.Now().Add(-txlog.MinRetention - time.Hour))
	require.NoError(t, db.InTx(t.Context(), func(tx *gorm.DB) error { return txlog.Record(tx, known, order.EventCancelled, "X") }))
	w.discarded(t)
	r := w.rescue(t, database.Options{}, func(c *checkback.RescueConfig) {
		var err error
		c.Checker, err = checkback.New(checkback.Config{Resolvers: map[string]checkback.Resolver{
			order.EventCancelled: txlog.NewResolver(w.open(t, database.Options{LockWait: time.Second})),
		}})
		require.NoError(t, err)
	})
	eventually(t, func() bool {
		return r.outcome(t, "dead_letter") == 1 && r.outcome(t, "rolled_back") == 1 && r.outcome(t, "republished") == 1
	}, "not decided")
	require.Contains(t, records(t, db), known.MsgID, "a row that is there counts at any age")
	var states []struct{ TxID, State string }
	require.NoError(t, db.Read.Raw("SELECT tx_id, state FROM t_tx_log WHERE state = 'VOID'").Scan(&states).Error)
	require.Equal(t, []struct{ TxID, State string }{{young.MsgID, "VOID"}}, states)
	var letter struct{ MsgID, Reason string }
	require.NoError(t, db.Read.Raw("SELECT msg_id, reason FROM t_dead_letter").Scan(&letter).Error)
	require.Equal(t, old.MsgID, letter.MsgID)
	require.Contains(t, letter.Reason, "rows of t_tx_log may be deleted after 73h")
}

// A message that committed while its fact is recorded under another id would be lost if it counted as recorded.
func TestRescueOfAFactUnderAnotherID(t *testing.T) {
	t.Parallel()
	onWorlds(t, func(t *testing.T, w world) {
		db := w.open(t, database.Options{})
		writer, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "rocketmq", Destination: "x"})
		require.NoError(t, err)
		o, err := w.order(t, db, nil)
		require.NoError(t, err)
		require.NoError(t, db.InTx(context.Background(), func(tx *gorm.DB) error {
			return writer.WriteTx(tx, halfbox.Event{Type: order.EventCreated, Source: "/x", Subject: o.OrderNo, Data: []byte("{}"), Time: time.Now()}, newAttempt(t))
		}))
		w.discarded(t)
		r := w.rescue(t, database.Options{})
		eventually(t, func() bool { return r.outcome(t, "dead_letter") == 1 }, "an operator is not told")
		require.Len(t, records(t, db), 1)
		require.Zero(t, r.outcome(t, "recorded"))
	})
}
