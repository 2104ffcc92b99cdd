package httpapi

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever the decoder takes, encoding/json reads the same way; whatever it refuses is a 400.
func FuzzDecodeCreateOrder(f *testing.F) {
	for _, seed := range []string{
		`{"user_id":7,"amount_cents":9990}`, `{"user_id":7,"amount_cents":9990,"delivery":"txmsg"}`,
		`{"USER_ID":7}`, `{"user_id":7,"user_id":8}`, `{"user_id":1e3}`, `{"user_id":null}`, `[]`, `null`, ``, `{`, `{"":{}}`,
		`{"user_id":-9223372036854775808,"amount_cents":9223372036854775808}`, `{"user\u005fid":1,"amount_cents":-0}`,
		"{\"delivery\":\"\xff\"}", `{"user_id":7,"amount_cents":9990} {}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := decodeCreateOrder(body)
		if err != nil {
			var p *problem
			require.ErrorAs(t, err, &p)
			require.Equal(t, 400, p.Status)
			require.LessOrEqual(t, len(p.Field), 67)
			return
		}
		var members map[string]any
		require.NoError(t, json.Unmarshal(body, &members))
		for name := range members {
			require.Contains(t, []string{"user_id", "amount_cents", "delivery"}, name)
		}
		var want struct {
			UserID      int64  `json:"user_id"`
			AmountCents int64  `json:"amount_cents"`
			Delivery    string `json:"delivery"`
		}
		require.NoError(t, json.Unmarshal(body, &want))
		require.Equal(t, want.UserID, req.UserID)
		require.Equal(t, want.AmountCents, req.AmountCents)
		require.Equal(t, want.Delivery, string(req.Delivery))
		require.Empty(t, req.IdempotencyKey)
	})
}
