package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

type accountAnswer struct {
	UserID  int64 `json:"user_id"`
	Balance int64 `json:"balance"`
	Records []struct {
		MsgID        string `json:"msg_id"`
		OrderNo      string `json:"order_no"`
		Type         string `json:"type"`
		Points       int64  `json:"points"`
		BalanceAfter int64  `json:"balance_after"`
		CreatedAt    string `json:"created_at"`
	} `json:"records"`
}

func TestPoints(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	first := decode[orderAnswer](t, call(t, f, post(`{"user_id":7,"amount_cents":9990}`)).Body)
	second := decode[orderAnswer](t, call(t, f, post(`{"user_id":7,"amount_cents":100}`)).Body)

	w := call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/users/7/points", nil))
	require.Equal(t, http.StatusOK, w.Code)
	acc := decode[accountAnswer](t, w.Body)
	require.EqualValues(t, 7, acc.UserID)
	require.EqualValues(t, 100, acc.Balance)
	require.Len(t, acc.Records, 2)
	require.Equal(t, second.OrderNo, acc.Records[0].OrderNo, "newest first")
	require.Equal(t, first.OrderNo, acc.Records[1].OrderNo)
	require.Equal(t, first.MsgID, acc.Records[1].MsgID)
	require.Equal(t, "EARN", acc.Records[1].Type)
	require.EqualValues(t, 99, acc.Records[1].Points)
	require.EqualValues(t, 99, acc.Records[1].BalanceAfter)
}

func TestPointsOfNobody(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	w := call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/users/9223372036854775807/points", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, `{"user_id":9223372036854775807,"balance":0,"records":[]}`, w.Body.String())
}

func TestPointsRefusesBadUsers(t *testing.T) {
	f := newFixture(t, database.Hooks{})
	for _, id := range []string{"0", "-7", "+7", "007", "7.0", "x", "9223372036854775808", "%20"} {
		w := call(t, f, httptest.NewRequest(http.MethodGet, "/api/v1/users/"+id+"/points", nil))
		require.Equal(t, "user_id", requireProblem(t, w, http.StatusBadRequest, "invalid-request").Field, id)
	}
}
