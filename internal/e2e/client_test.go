package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// wish is one order a client wants, repeated under its key until it has it.
type wish struct {
	Key      string `json:"-"`
	UserID   int64  `json:"user_id"`
	Amount   int64  `json:"amount_cents"`
	Delivery string `json:"delivery,omitempty"`
	Cancel   bool   `json:"-"` // the order is to be cancelled, by the same delivery
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
	// It waits for as long as the API may take: that there was no answer means that nobody could give one. No kept
	// connections: they would outlive the process they lead to.
	return &http.Client{Timeout: wait, Transport: &http.Transport{DisableKeepAlives: true}}
}

// post sends the wish once. An error means that there was no answer.
func (w wish) post(api string) (answer, error) { return w.postWith(httpClient(), api) }

// postWith is post by a client of the caller's.
func (w wish) postWith(client *http.Client, api string) (answer, error) {
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
	return do(client, req)
}

func do(client *http.Client, req *http.Request) (answer, error) {
	res, err := client.Do(req)
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

// made tells whether the answer is an order.
func (a answer) made() bool { return a.Status == http.StatusCreated || a.Status == http.StatusOK }

// cancelOrder asks once for an order's cancellation.
func cancelOrder(api, orderNo, delivery string) (answer, error) {
	body, err := json.Marshal(map[string]string{"delivery": delivery})
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequest(http.MethodPost, api+"/api/v1/orders/"+orderNo+"/cancel", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	return do(httpClient(), req)
}

// once asks for the order and, when it is there and the wish says so, for its cancellation. The answer is that about
// the order unless the cancellation was not done.
func (w wish) once(api string) (answer, error) {
	a, err := w.post(api)
	if err != nil || !a.made() || !w.Cancel {
		return a, err
	}
	if c, err := cancelOrder(api, a.OrderNo, w.Delivery); err != nil || c.Status != http.StatusOK {
		return c, err
	}
	return a, nil
}

// cancelling has every n-th order cancelled.
func cancelling(n int, all []wish) []wish {
	for i := range all {
		all[i].Cancel = i%n == n-1
	}
	return all
}

// fulfil repeats the wish until it has its order, for clients that outlive the server.
func (w wish) fulfil(t testing.TB, api string) answer {
	t.Helper()
	var last answer
	require.Eventually(t, func() bool {
		a, err := w.once(api)
		last = a
		return err == nil && a.made()
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
