package outbox

import "time"

// backoff is how long after its retryCount-th failure a record is due again: retryCount squared times base (5, 20
// and 45 s with the default base), at most limit, then spread by jitter (0.2 is ±20 %). spread is a random number
// in [0,1). Without the spread every record of an outage would come back in the same moment.
func backoff(retryCount int, base, limit time.Duration, jitter, spread float64) time.Duration {
	n := float64(max(retryCount, 1))
	// In floating point, so that a large count ends at the limit and not in an overflow.
	d := min(n*n*float64(base), float64(limit))
	return time.Duration(d * (1 + jitter*(2*spread-1)))
}
