package httpapi

import (
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/halfbox/halfbox/points"
)

// accountBody is a user's points as the API shows them.
type accountBody struct {
	UserID  int64        `json:"user_id"`
	Balance int64        `json:"balance"`
	Records []recordBody `json:"records"`
}

type recordBody struct {
	MsgID        string            `json:"msg_id"`
	OrderNo      string            `json:"order_no"`
	Type         points.RecordType `json:"type"`
	Points       int64             `json:"points"`
	BalanceAfter int64             `json:"balance_after"`
	CreatedAt    timestamp         `json:"created_at"`
}

func newAccountBody(acc points.Account) accountBody {
	body := accountBody{
		UserID: acc.UserID, Balance: acc.Balance,
		Records: make([]recordBody, 0, len(acc.Records)), // [] and never null
	}
	for _, r := range acc.Records {
		body.Records = append(body.Records, recordBody{
			MsgID: r.MsgID, OrderNo: r.OrderNo, Type: r.Type, Points: r.Points,
			BalanceAfter: r.BalanceAfter, CreatedAt: timestamp(r.CreatedAt),
		})
	}
	return body
}

func (a *api) getPoints(c *gin.Context) error {
	userID, err := strconv.ParseInt(c.Param("user_id"), 10, 64)
	// One user has one address: 007 and +7 are not other names of 7.
	if err != nil || userID <= 0 || strconv.FormatInt(userID, 10) != c.Param("user_id") {
		return invalidRequest("user_id", "must be a positive number")
	}
	acc, err := a.points.Account(c.Request.Context(), userID)
	if err != nil {
		return err
	}
	writeJSON(c, http.StatusOK, newAccountBody(acc))
	return nil
}
