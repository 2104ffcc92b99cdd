package compare

import (
	"math"
	"slices"
	"time"
)

// quantile returns the q-quantile (0..1) of values, which need not be sorted, by the nearest rank: a value that was
// measured. NaN when there is none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// median is the middle value, or the mean of the two in the middle.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Summary is one number per round, summed up.
type Summary struct {
	Median float64 `json:"median"`
	// Min and Max are the spread over the rounds.
	Min float64 `json:"min"`
	Max float64 `json:"max"`
	// Rounds are the values themselves, in the order of the rounds.
	Rounds []float64 `json:"rounds"`
}

// summarize sums up the rounds in which there was something to measure; nil when there was none.
func summarize(rounds []float64) *Summary {
	kept := slices.DeleteFunc(slices.Clone(rounds), math.IsNaN)
	if len(kept) == 0 {
		return nil
	}
	return &Summary{Median: median(kept), Min: slices.Min(kept), Max: slices.Max(kept), Rounds: kept}
}

// The rule of Decide.
const (
	// minRounds is the number of rounds below which the spread says too little.
	minRounds = 5
	// minDifference is the share of the better median below which a difference is of no use to anybody.
	minDifference = 0.05
)

// Decide tells whether a is better than b, b than a, or neither (0). A difference counts when it exceeds the spread:
//
//   - there are five rounds of each at least,
//   - every round of the one is better than every round of the other,
//   - the medians lie further apart than the wider of the two ranges, and by at least 5 %.
//
// For two strategies that are the same, five rounds pass the second condition with a probability of 0.8 %, and all of
// them in less than 0.5 % of the cases: TestTwinsAreNotToldApart. Three rounds would in some 4 %.
func Decide(a, b *Summary, lowerIsBetter bool) int {
	if a == nil || b == nil || len(a.Rounds) < minRounds || len(b.Rounds) < minRounds {
		return 0
	}
	apart := math.Abs(a.Median - b.Median)
	if apart <= max(a.Max-a.Min, b.Max-b.Min) || apart < minDifference*max(math.Abs(a.Median), math.Abs(b.Median)) {
		return 0
	}
	var lower int
	switch {
	case a.Max < b.Min:
		lower = 1
	case b.Max < a.Min:
		lower = -1
	}
	if !lowerIsBetter {
		return -lower
	}
	return lower
}

// ranking says who is best by the medians, whom it beats, and from whom it cannot be told apart.
func ranking(names []string, values map[string]*Summary, lowerIsBetter bool) (best string, beats, ties []string) {
	for _, n := range names {
		if values[n] == nil {
			continue
		}
		if best == "" || (values[n].Median < values[best].Median) == lowerIsBetter && values[n].Median != values[best].Median {
			best = n
		}
	}
	for _, n := range names {
		switch {
		case n == best || values[n] == nil:
		case Decide(values[best], values[n], lowerIsBetter) > 0:
			beats = append(beats, n)
		default:
			ties = append(ties, n)
		}
	}
	return best, beats, ties
}

// ms is a duration in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// curve returns the quantiles of values at 0, 0.5, 1 ... 99.5, 100 %, the last ones finer: what a plot of the
// distribution needs.
func curve(values []float64) []float64 {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	out := make([]float64, 0, len(curveAt()))
	for _, q := range curveAt() {
		rank := int(math.Ceil(q * float64(len(sorted))))
		out = append(out, sorted[min(max(rank, 1), len(sorted))-1])
	}
	return out
}

// curveAt are the quantiles of a curve.
func curveAt() (at []float64) {
	for i := 0; i < 198; i++ {
		at = append(at, float64(i)/200)
	}
	for i := 990; i <= 1000; i++ {
		at = append(at, float64(i)/1000)
	}
	return at
}
