package points_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/points"
)

func TestPoison(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		raw := func(body string) func(*fact) []byte { return func(*fact) []byte { return []byte(body) } }
		with := func(change func(*fact)) func(*fact) []byte {
			return func(f *fact) []byte { change(f); return f.message(t).Body }
		}
		good := newFact(7, 500)
		tests := map[string]struct {
			body   func(*fact) []byte
			reason string
		}{
			"nothing":            {func(*fact) []byte { return nil }, "envelope"},
			"empty":              {raw(""), "envelope"},
			"garbage":            {raw("\x00\xff\xfe not json \x80"), "envelope"},
			"not an envelope":    {raw(`{"order_no":"A","user_id":7,"amount_cents":500}`), "envelope"},
			"half a body":        {func(*fact) []byte { return good.message(t).Body[:80] }, "envelope"},
			"unknown schema":     {with(func(f *fact) { f.schema = "urn:halfbox:schema:order:2" }), "schema"},
			"unknown type":       {with(func(f *fact) { f.typ = "order.exploded" }), "order.exploded"},
			"not the data":       {with(func(f *fact) { f.data = `["x"]` }), "data"},
			"null":               {with(func(f *fact) { f.data = `null` }), "order_no"},
			"negative amount":    {with(func(f *fact) { f.amount = -1 }), "amount_cents"},
			"too large":          {with(func(f *fact) { f.amount = math.MaxInt64 }), "amount_cents"},
			"amount is text":     {with(func(f *fact) { f.data = `{"order_no":"A","user_id":7,"amount_cents":"500"}` }), "amount_cents"},
			"amount is a part":   {with(func(f *fact) { f.data = `{"order_no":"A","user_id":7,"amount_cents":1.5}` }), "amount_cents"},
			"amount overflows":   {with(func(f *fact) { f.data = `{"order_no":"A","user_id":7,"amount_cents":9223372036854775808}` }), "amount_cents"},
			"no user":            {with(func(f *fact) { f.userID = 0 }), "user_id"},
			"negative user":      {with(func(f *fact) { f.userID = -7 }), "user_id"},
			"no order":           {with(func(f *fact) { f.orderNo = "" }), "order_no"},
			"order too long":     {with(func(f *fact) { f.orderNo = strings.Repeat("A", 65) }), "order_no"},
			"order not ASCII":    {with(func(f *fact) { f.orderNo = "заказ" }), "order_no"},
			"message id long":    {with(func(f *fact) { f.msgID = strings.Repeat("m", 81) }), "id"},
			"placeholder's id":   {with(func(f *fact) { f.msgID = "void:" + f.orderNo }), "void:"},
			"message not ASCII":  {with(func(f *fact) { f.msgID = "сообщение" }), "id"},
			"a very long reason": {with(func(f *fact) { f.schema = "urn:" + strings.Repeat("é", 5000) }), "unknown schema"},
		}
		ids := map[string]string{}
		for name, tt := range tests {
			f := newFact(7, 500)
			m := points.Message{MsgID: uuid.NewString(), Topic: topic, Body: tt.body(&f)}
			ids[m.MsgID] = name
			r.handle(points.DeadLetter, m)
		}
		letters := r.deadLetters()
		require.Len(t, letters, len(tests))
		for _, letter := range letters {
			name := ids[letter.MsgID]
			f := newFact(7, 500)
			require.Contains(t, letter.Reason, tests[name].reason, name)
			require.LessOrEqual(t, len([]rune(letter.Reason)), 1024)
			require.Equal(t, []string{consumer, topic, "DEAD"}, []string{letter.Consumer, letter.Topic, letter.State})
			require.Equal(t, 1, letter.Attempts)
			if strings.HasPrefix(tests[name].reason, "envelope") {
				require.Equal(t, string(tests[name].body(&f)), string(letter.Payload), "the very bytes: %s", name)
			}
		}
		r.counted(map[points.Outcome]int{points.DeadLetter: len(tests)})
		r.requireBalance(7, 0, 0)
		r.handle(points.Credited, good.message(t)) // the rest goes on
	})
}

func TestPoisonAgain(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		body := []byte("\x00\x01\xff")
		for n := 1; n <= 3; n++ {
			r.handle(points.DeadLetter, points.Message{MsgID: "poison", Topic: topic, Body: body})
			letters := r.deadLetters()
			require.Len(t, letters, 1)
			require.Equal(t, n, letters[0].Attempts)
			require.Equal(t, body, letters[0].Payload)
			require.WithinDuration(t, time.Now(), letters[0].FirstFailedAt, time.Minute)
			require.False(t, letters[0].LastFailedAt.Before(letters[0].FirstFailedAt))
		}
	})
}

// A foreign producer's id may be anything; its message must not be tried for ever.
func TestPoisonWithAnOddMessageID(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, e engine) {
		r := newRig(t, e.db(t), points.Hooks{})
		for _, id := range []string{"", "été 🎂", strings.Repeat("é", 128), strings.Repeat("x", 129), "bad \xff utf-8"} {
			r.handle(points.DeadLetter, points.Message{MsgID: id, Topic: topic, Body: []byte("x")})
			r.handle(points.DeadLetter, points.Message{MsgID: id, Topic: topic, Body: []byte("x")})
		}
		letters := r.deadLetters()
		require.Len(t, letters, 5)
		for _, letter := range letters {
			require.Equal(t, 2, letter.Attempts)
		}
	})
}
