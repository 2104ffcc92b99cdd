//go:build !race

package txmsg_test

const raceDetector = false
