//go:build race

package txmsg_test

// raceDetector: the client races with itself when a consumer is stopped right after its start.
const raceDetector = true
