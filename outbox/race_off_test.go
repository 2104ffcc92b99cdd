//go:build !race

package outbox

const raceDetector = false
