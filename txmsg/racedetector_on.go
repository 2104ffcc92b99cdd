//go:build race

package txmsg

import "os"

// orderForRaceDetector tells the race detector that what was written to sockets is past: the client reads its flag
// "closed" without a lock when it answers a check-back, and Shutdown writes it (apache/rocketmq-client-go#1115). The
// detector orders every read of a file after every write to a socket.
func orderForRaceDetector() { _, _ = os.ReadFile(os.DevNull) }
