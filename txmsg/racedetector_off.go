//go:build !race

package txmsg

func orderForRaceDetector() {}
