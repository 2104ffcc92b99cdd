package rig

import (
	"sync/atomic"

	"github.com/halfbox/halfbox/internal/netfault"
)

// codeEndTransaction is the request that decides about a half message.
const codeEndTransaction = 37

// traffic counts what passes to the brokers.
type traffic struct{ sends, ends, requests atomic.Int64 }

func (t *traffic) request(r netfault.Request) {
	switch {
	case r.Code == codeEndTransaction:
		t.ends.Add(1)
	case r.Messages > 0:
		t.sends.Add(int64(r.Messages))
	default:
		return
	}
	t.requests.Add(1)
}
