package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/database"
)

// orderAnswer is the client's side of an order.
type orderAnswer struct {
	OrderNo     string `json:"order_no"`
	UserID      int64  `json:"user_id"`
	AmountCents int64  `json:"amount_cents"`
	Status      string `json:"status"`
	Delivery    string `json:"delivery"`
	MsgID       string `json:"msg_id"`
	PointsState string `json:"points_state"`
	CreatedAt   string `json:"created_at"`
}

func TestCreateOrder(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	for _, tc := range []struct{ name, body, contentType, delivery string }{
		{"default delivery", `{"user_id":7,"amount_cents":9990}`, "application/json", "txmsg"},
		{"chosen delivery", `{"user_id":7,"amount_cents":9990,"delivery":"outbox"}`, "application/json", "outbox"},
		{"other order, spaces, charset", " {\n\"amount_cents\" : 9990,\t\"user_id\":7 }\n", `application/json; charset=UTF-8`, "txmsg"},
		{"type in capitals", `{"user_id":7,"amount_cents":9990}`, "APPLICATION/JSON", "txmsg"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := f.rows(t)
			r := post(tc.body)
			r.Header.Set("Content-Type", tc.contentType)
			r.Header.Set("Content-Encoding", "identity")
			w := call(t, f, r)
			require.Equal(t, http.StatusCreated, w.Code, w.Body.String())
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			raw := w.Body.String()
			o := decode[orderAnswer](t, w.Body)
			require.Equal(t, before+1, f.rows(t))
			require.Equal(t, orderAnswer{
				OrderNo: o.OrderNo, UserID: 7, AmountCents: 9990, Status: "CREATED", Delivery: tc.delivery,
				MsgID: o.MsgID, PointsState: "PENDING", CreatedAt: o.CreatedAt,
			}, o)
			at, err := time.Parse("2006-01-02T15:04:05.000000Z", o.CreatedAt)
			require.NoError(t, err)
			require.WithinDuration(t, time.Now(), at, time.Minute)

			require.Equal(t, "/api/v1/orders/"+o.OrderNo, w.Header().Get("Location"))
			w = call(t, f, httptest.NewRequest(http.MethodGet, w.Header().Get("Location"), nil))
			require.Equal(t, http.StatusOK, w.Code)
			require.Equal(t, raw, w.Body.String(), "a later Get gives the very same order")
		})
	}
}

// Every one of these gets its problem and changes nothing.
func TestCreateOrderRefusesBadInput(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	const good = `{"user_id":7,"amount_cents":9990}`
	for _, tc := range []struct {
		name, body, field string
	}{
		{"empty body", "", ""},
		{"blank body", " \n", ""},
		{"broken JSON", `{"user_id":7,`, ""},
		{"no JSON", `user_id=7&amount_cents=9990`, ""},
		{"comma too many", `{"user_id":7,"amount_cents":9990,}`, ""},
		{"trailing data", good + `{"user_id":8}`, ""},
		{"trailing garbage", good + `x`, ""},
		{"two documents", good + "\n" + good, ""},
		{"byte order mark", "\ufeff" + good, ""},
		{"null", `null`, ""},
		{"array", `[` + good + `]`, ""},
		{"string", `"user_id"`, ""},
		{"number", `7`, ""},
		{"empty object", `{}`, "user_id"},
		{"unknown field", `{"user_id":7,"amount_cents":9990,"points":5}`, "points"},
		{"field in another case", `{"USER_ID":7,"amount_cents":9990}`, "USER_ID"},
		{"field also in another case", `{"user_id":7,"amount_cents":9990,"User_Id":8}`, "User_Id"},
		{"field twice", `{"user_id":7,"user_id":8,"amount_cents":9990}`, "user_id"},
		{"long unknown field", `{"` + strings.Repeat("é", 100) + `":1}`, strings.Repeat("é", 32) + "..."},
		{"long unknown field, cut inside a letter", `{"a` + strings.Repeat("é", 100) + `":1}`, "a" + strings.Repeat("é", 31) + "..."},
		{"idempotency key in the body", `{"user_id":7,"amount_cents":9990,"idempotency_key":"k"}`, "idempotency_key"},
		{"user_id missing", `{"amount_cents":9990}`, "user_id"},
		{"user_id null", `{"user_id":null,"amount_cents":9990}`, "user_id"},
		{"user_id string", `{"user_id":"7","amount_cents":9990}`, "user_id"},
		{"user_id bool", `{"user_id":true,"amount_cents":9990}`, "user_id"},
		{"user_id object", `{"user_id":{"id":7},"amount_cents":9990}`, "user_id"},
		{"user_id array", `{"user_id":[7],"amount_cents":9990}`, "user_id"},
		{"user_id zero", `{"user_id":0,"amount_cents":9990}`, "user_id"},
		{"user_id negative", `{"user_id":-7,"amount_cents":9990}`, "user_id"},
		{"user_id fraction", `{"user_id":7.5,"amount_cents":9990}`, "user_id"},
		{"user_id beyond int64", `{"user_id":9223372036854775808,"amount_cents":9990}`, "user_id"},
		{"amount missing", `{"user_id":7}`, "amount_cents"},
		{"amount null", `{"user_id":7,"amount_cents":null}`, "amount_cents"},
		{"amount zero", `{"user_id":7,"amount_cents":0}`, "amount_cents"},
		{"amount minus zero", `{"user_id":7,"amount_cents":-0}`, "amount_cents"},
		{"amount negative", `{"user_id":7,"amount_cents":-9990}`, "amount_cents"},
		{"amount float", `{"user_id":7,"amount_cents":99.90}`, "amount_cents"},
		{"amount float of a whole number", `{"user_id":7,"amount_cents":9990.0}`, "amount_cents"},
		{"amount with exponent", `{"user_id":7,"amount_cents":1e3}`, "amount_cents"},
		{"amount string", `{"user_id":7,"amount_cents":"9990"}`, "amount_cents"},
		{"amount over the limit", `{"user_id":7,"amount_cents":100000000001}`, "amount_cents"},
		{"amount beyond int64", `{"user_id":7,"amount_cents":9223372036854775808}`, "amount_cents"},
		{"amount of 400 digits", `{"user_id":7,"amount_cents":` + strings.Repeat("9", 400) + `}`, "amount_cents"},
		{"delivery unknown", `{"user_id":7,"amount_cents":9990,"delivery":"pigeon"}`, "delivery"},
		{"delivery in another case", `{"user_id":7,"amount_cents":9990,"delivery":"TXMSG"}`, "delivery"},
		{"delivery not run here", `{"user_id":7,"amount_cents":9990,"delivery":"cdc"}`, "delivery"},
		{"delivery empty", `{"user_id":7,"amount_cents":9990,"delivery":""}`, "delivery"},
		{"delivery null", `{"user_id":7,"amount_cents":9990,"delivery":null}`, "delivery"},
		{"delivery number", `{"user_id":7,"amount_cents":9990,"delivery":1}`, "delivery"},
		{"deep nesting", strings.Repeat("[", 20000) + strings.Repeat("]", 20000), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := call(t, f, post(tc.body, "Idempotency-Key", "key"))
			raw := w.Body.String()
			p := requireProblem(t, w, http.StatusBadRequest, "invalid-request")
			require.Equal(t, tc.field, p.Field)
			require.Equal(t, "/api/v1/orders", p.Instance)
			requireNoInternals(t, raw)
		})
	}
	require.Zero(t, f.rows(t))
	require.Zero(t, f.logs.FilterLevelExact(zap.ErrorLevel).Len(), "a client's mistake is no error of ours")
}

// requestIDMember is random letters, which may spell anything.
var requestIDMember = regexp.MustCompile(`"request_id":"[^"]*"`)

// requireNoInternals looks for the words of Go's decoder, the driver and our packages.
func requireNoInternals(t *testing.T, body string) {
	t.Helper()
	require.Regexp(t, requestIDMember, body)
	body = requestIDMember.ReplaceAllString(body, "")
	for _, word := range []string{"json:", "Unmarshal", "int64", "Go ", "strconv", "unexpected", "sql", "SQL", "Error{", "halfbox"} {
		require.NotContains(t, body, word)
	}
}

func TestCreateOrderRefusesBadHeaders(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	for _, tc := range []struct {
		name    string
		headers []string // they replace the Content-Type when they have one
		status  int
		problem string
	}{
		{"form", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported-media-type"},
		{"text", []string{"Content-Type", "text/plain"}, 415, "unsupported-media-type"},
		{"no type", []string{"Content-Type", ""}, 415, "unsupported-media-type"},
		{"broken type", []string{"Content-Type", "application/json; charset"}, 415, "unsupported-media-type"},
		{"two types", []string{"Content-Type", "application/json", "Content-Type", "text/plain"}, 415, "unsupported-media-type"},
		{"json of a kind", []string{"Content-Type", "application/problem+json"}, 415, "unsupported-media-type"},
		{"other charset", []string{"Content-Type", "application/json; charset=utf-16"}, 415, "unsupported-media-type"},
		{"compressed", []string{"Content-Encoding", "gzip"}, 415, "unsupported-media-type"},
		{"two keys", []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 400, "invalid-request"},
		{"the same key twice", []string{"Idempotency-Key", "a", "Idempotency-Key", "a"}, 400, "invalid-request"},
		{"empty key", []string{"Idempotency-Key", ""}, 400, "invalid-request"},
		{"key with a space", []string{"Idempotency-Key", "a b"}, 400, "invalid-request"},
		{"key beyond ASCII", []string{"Idempotency-Key", "clé"}, 400, "invalid-request"},
		{"long key", []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400, "invalid-request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := post(`{"user_id":7,"amount_cents":9990}`)
			if tc.headers[0] == "Content-Type" {
				r.Header.Del("Content-Type")
			}
			p := requireProblem(t, call(t, f, with(r, tc.headers...)), tc.status, tc.problem)
			if tc.headers[0] == "Idempotency-Key" {
				require.Equal(t, "Idempotency-Key", p.Field)
			}
		})
	}
	require.Zero(t, f.rows(t))
}

func TestLongestKeyIsGood(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	w := call(t, f, post(`{"user_id":7,"amount_cents":100000000000}`, "Idempotency-Key", strings.Repeat("~", 255)))
	require.Equal(t, http.StatusCreated, w.Code)
}

func TestReplay(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	const body = `{"user_id":7,"amount_cents":9990}`
	first := call(t, f, post(body, "Idempotency-Key", "k1"))
	require.Equal(t, http.StatusCreated, first.Code)
	again := call(t, f, post(` {"amount_cents":9990, "user_id":7} `, "idempotency-key", "k1"))
	require.Equal(t, http.StatusOK, again.Code)
	require.Equal(t, first.Body.String(), again.Body.String())
	require.Equal(t, first.Header().Get("Location"), again.Header().Get("Location"))

	for _, other := range []string{
		`{"user_id":7,"amount_cents":9991}`,
		`{"user_id":7,"amount_cents":9990,"delivery":"outbox"}`,
	} {
		p := requireProblem(t, call(t, f, post(other, "Idempotency-Key", "k1")), http.StatusUnprocessableEntity, "idempotency-key-reused")
		require.Equal(t, "Idempotency-Key", p.Field)
	}
	require.EqualValues(t, 1, f.rows(t))

	require.Equal(t, http.StatusCreated, call(t, f, post(`{"user_id":8,"amount_cents":1}`, "Idempotency-Key", "k1")).Code, "keys belong to a user")
	require.Equal(t, http.StatusCreated, call(t, f, post(body)).Code, "no key, no replay")
	require.EqualValues(t, 3, f.rows(t))
}

func TestConcurrentSameKey(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	const n = 16
	answers := make([]*httptest.ResponseRecorder, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			answers[i] = httptest.NewRecorder()
			f.ServeHTTP(answers[i], post(`{"user_id":7,"amount_cents":9990}`, "Idempotency-Key", "one"))
		})
	}
	wg.Wait()
	created := 0
	for _, w := range answers {
		if w.Code == http.StatusCreated {
			created++
		} else {
			require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		}
		require.Equal(t, answers[0].Body.String(), w.Body.String())
	}
	require.Equal(t, 1, created)
	require.EqualValues(t, 1, f.rows(t))
}

func TestBodyLimit(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	srv := httptest.NewUnstartedServer(f)
	srv.Config = NewServer(f)
	srv.Start()
	defer srv.Close()
	body := `{"user_id":7,"amount_cents":9990}`
	send := func(size int, chunked bool) *http.Response {
		r, err := http.NewRequest(http.MethodPost, srv.URL+"/api/v1/orders", strings.NewReader(body+strings.Repeat(" ", size-len(body))))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		if chunked {
			r.ContentLength = -1
		}
		res, err := srv.Client().Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	require.Equal(t, http.StatusCreated, send(64<<10, false).StatusCode)
	require.Equal(t, http.StatusCreated, send(64<<10, true).StatusCode)
	for _, chunked := range []bool{false, true} {
		res := send(64<<10+1, chunked)
		require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
		require.True(t, res.Close, "the rest of the body is not waited for")
		require.Equal(t, "/problems/body-too-large", decode[problem](t, res.Body).Type)
	}
	require.EqualValues(t, 2, f.rows(t))

	w := call(t, f, post(body+strings.Repeat(" ", 64<<10)))
	requireProblem(t, w, http.StatusRequestEntityTooLarge, "body-too-large")
}

// A body that ends before its length said is not taken for what had come so far, even where that is a whole document.
func TestBodyCutShort(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	r := post("")
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"user_id":7,"amount_cents":9990}`), iotest.ErrReader(io.ErrUnexpectedEOF)))
	requireProblem(t, call(t, f, r), http.StatusBadRequest, "invalid-request")
	require.Zero(t, f.rows(t))
}

func TestGetOrderNotFound(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	for _, no := range []string{"NOSUCHORDER", "~0198f5b2-7c41-7d0e-9a53-5b1f0c9e8d21", strings.Repeat("A", 65), "a%00b", "%ff", "%20", "'%20OR%201=1"} {
		w := call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/orders/"+no, nil))
		p := requireProblem(t, w, http.StatusNotFound, "not-found")
		require.Equal(t, "There is no such order.", p.Detail)
		require.Equal(t, "/api/v1/orders/"+no, p.Instance)
	}
}
