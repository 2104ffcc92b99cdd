package httpapi

import (
	"encoding/json"
	"time"

	"github.com/gin-gonic/gin"
)

// timestamp is a time as the API writes it: RFC 3339, UTC, always six digits of a second.
type timestamp time.Time

// MarshalJSON writes the time.
func (t timestamp) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(t).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}

func writeJSON(c *gin.Context, status int, body any) { write(c, status, "application/json", body) }

// write encodes before it answers, so that a body that cannot be encoded becomes a 500 by recovery and not half an
// answer.
func write(c *gin.Context, status int, contentType string, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // our own types always encode
	}
	c.Data(status, contentType, b)
}
