package txmsg

import (
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/internal/rocketmq"
)

// ConfigureClient sets what the RocketMQ client keeps in process-wide variables: its logger, which is bridged to log
// with message bodies left out, the handler of the panics it recovers, and its network timeouts. Nothing else of this
// module is global. Call it once in main, before New; it is not safe for concurrent use.
//
// It is optional: without it the client writes its own lines to standard output, bodies included, and one broker that
// swallows packets stalls every send for 15 s instead of 2 s.
func ConfigureClient(log *zap.Logger) error { return rocketmq.Configure(log) }
