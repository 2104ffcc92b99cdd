package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wish is one order a client wants, repeated under its key until it has it.
type wish struct {
	Key      string `json:"-"`
	UserID   int64  `json:"user_id"`
	Amount   int64  `json:"amount_cents"`
	Delivery string `json:"delivery,omitempty"`
}

// answer is what the API says about an order.
type answer struct {
	Status  int    `json:"-"`
	OrderNo string `json:"order_no"`
	MsgID   string `json:"msg_id"`
	Via     string `json:"delivery"`
	Type    string `json:"type"` // of a problem
}

func httpClient() *http.Client {
	// No kept connections: they would outlive the process they lead to.
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

// post sends the wish once. An error means that there was no answer.
func (w wish) post(api string) (answer, error) {
	body, err := json.Marshal(w)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequest(http.MethodPost, api+"/api/v1/orders", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if w.Key != "" {
		req.Header.Set("Idempotency-Key", w.Key)
	}
	return do(req)
}

func do(req *http.Request) (answer, error) {
	res, err := httpClient().Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{Status: res.StatusCode}
	return a, json.Unmarshal(text, &a)
}

// fulfil repeats the wish until it has its order, for clients that outlive the server.
func (w wish) fulfil(t testing.TB, api string) answer {
	t.Helper()
	var last answer
	require.Eventually(t, func() bool {
		a, err := w.post(api)
		last = a
		return err == nil && (a.Status == http.StatusCreated || a.Status == http.StatusOK)
	}, wait, tick, "no order for %s", w.Key)
	return last
}

func get(t testing.TB, url string) (int, string) {
	t.Helper()
	res, err := httpClient().Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func wishes(n int, delivery func(i int) string) []wish {
	all := make([]wish, n)
	for i := range all {
		all[i] = wish{Key: fmt.Sprintf("key-%04d", i), UserID: int64(1 + i%17), Amount: int64(100 + 37*i), Delivery: delivery(i)}
	}
	return all
}

func everyTxmsg(int) string { return "txmsg" }
