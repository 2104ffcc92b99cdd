package compare

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.2: 1, 0.21: 2, 0.5: 3, 0.99: 5, 1: 5} {
		require.Equal(t, want, quantile(values, q), q)
	}
	require.Equal(t, []float64{5, 1, 4, 2, 3}, values, "not sorted in place")
	require.True(t, math.IsNaN(quantile(nil, 0.5)))
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
}

func TestQuantilesAreMeasuredValuesInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 200).Draw(t, "values")
		last := math.Inf(-1)
		for _, v := range curve(values) {
			require.Contains(t, values, v)
			require.GreaterOrEqual(t, v, last)
			last = v
		}
		require.Len(t, curve(values), len(curveAt()))
	})
}

func summaryOf(values ...float64) *Summary { return summarize(values) }

func TestDecide(t *testing.T) {
	t.Parallel()
	slow, fast := summaryOf(13, 13.4, 12.8, 13.1, 13), summaryOf(10, 10.3, 9.8, 10.1, 10)
	require.Equal(t, 1, Decide(fast, slow, true))
	require.Equal(t, -1, Decide(slow, fast, true))
	require.Equal(t, 1, Decide(slow, fast, false), "higher is better")
	require.Zero(t, Decide(fast, fast, true), "the same")
	require.Zero(t, Decide(summaryOf(1, 1.1, 1, 1.1), summaryOf(5, 5.1, 5, 5.1), true), "four rounds show too little of the spread")
	require.Zero(t, Decide(fast, nil, true), "not measured")
	require.Zero(t, Decide(summaryOf(10, 10, 10, 10, 10), summaryOf(10.1, 10.1, 10.1, 10.1, 10.1), true), "too small to matter")
	require.Zero(t, Decide(summaryOf(10, 11, 11, 11, 12), summaryOf(11.9, 14, 14, 14, 15), true), "ranges overlap")
	require.Zero(t, Decide(summaryOf(10, 11, 11, 11, 18), summaryOf(18.1, 18.2, 18.2, 18.2, 18.3), true), "within the spread")
	require.Equal(t, 1, Decide(summaryOf(0, 0, 0, 0, 0), summaryOf(2, 2, 2, 2, 2), true), "counts do not scatter")
}

// The chance of naming a winner between two that are the same must be negligible, whatever their rounds scatter like:
// the table has a dozen rows and several pairs.
func TestTwinsAreNotToldApart(t *testing.T) {
	t.Parallel()
	const tries = 20000
	for name, draw := range map[string]func(r *rand.Rand) float64{
		"normal":     func(r *rand.Rand) float64 { return 100 + 10*r.NormFloat64() },
		"long tail":  func(r *rand.Rand) float64 { return 100 * math.Exp(0.3*r.NormFloat64()) },
		"very noisy": func(r *rand.Rand) float64 { return 100 * math.Exp(r.NormFloat64()) },
	} {
		random := rand.New(rand.NewPCG(1, 2))
		for _, rounds := range []int{3, 5, 7} {
			wrong := 0
			for range tries {
				a, b := make([]float64, rounds), make([]float64, rounds)
				for i := range a {
					a[i], b[i] = draw(random), draw(random)
				}
				if Decide(summarize(a), summarize(b), true) != 0 {
					wrong++
				}
			}
			share := float64(wrong) / tries
			most := map[int]float64{3: 0, 5: 0.005, 7: 0.0005}[rounds]
			require.LessOrEqual(t, share, most, "%s, %d rounds", name, rounds)
		}
	}
}

// One that is 30 % slower must be seen in rounds that scatter by 5 %, nearly always.
func TestThirtyPerCentAreSeen(t *testing.T) {
	t.Parallel()
	const tries = 5000
	random := rand.New(rand.NewPCG(3, 4))
	seen := 0
	for range tries {
		a, b := make([]float64, 5), make([]float64, 5)
		for i := range a {
			a[i], b[i] = 100*(1+0.05*random.NormFloat64()), 130*(1+0.05*random.NormFloat64())
		}
		if Decide(summarize(a), summarize(b), true) == 1 {
			seen++
		}
	}
	require.Greater(t, float64(seen)/tries, 0.95)
}

func TestRanking(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "missing"}
	values := map[string]*Summary{"a": summaryOf(10, 10.1, 10.1, 10.1, 10.2), "b": summaryOf(9.9, 10, 10, 10, 10.4), "c": summaryOf(20, 20.1, 20.1, 20.1, 20.2)}
	best, beats, ties := ranking(names, values, true)
	require.Equal(t, "b", best)
	require.Equal(t, []string{"c"}, beats)
	require.Equal(t, []string{"a"}, ties)
	best, beats, ties = ranking(names, values, false)
	require.Equal(t, "c", best)
	require.Equal(t, []string{"a", "b"}, beats)
	require.Empty(t, ties)
}

func TestWorkloadIsPlannedBySeed(t *testing.T) {
	t.Parallel()
	again := workload(7, 50, 100)
	require.Equal(t, again, workload(7, 50, 100))
	require.NotEqual(t, workload(7, 50, 100), workload(8, 50, 100))
	calls := workload(1, 20000, 500)
	last := calls[len(calls)-1].after.Seconds()
	require.InDelta(t, 40, last, 1.5, "the rate is kept")
	for i := 1; i < len(calls); i++ {
		require.GreaterOrEqual(t, calls[i].after, calls[i-1].after)
	}
	require.Zero(t, workload(1, 3, 0)[2].after)
}

func TestTurnsChange(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		at := [3][3]int{} // how often a strategy came at a place
		followed := map[[2]int]bool{}
		for round := range 30 {
			order := turns(seed, round, 3)
			require.ElementsMatch(t, []int{0, 1, 2}, order)
			require.Equal(t, order, turns(seed, round, 3))
			for place, strategy := range order {
				at[strategy][place]++
			}
			followed[[2]int{order[0], order[1]}] = true
		}
		require.Equal(t, [3][3]int{{10, 10, 10}, {10, 10, 10}, {10, 10, 10}}, at, "each is at each place equally often")
		require.Len(t, followed, 6, "not always after the same one")
	}
}

func TestWorkloadLastsAsLongAsTheFault(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{1, 20, 100} {
		for seed := range uint64(50) {
			calls := workloadDuring(seed, 6*time.Second, rate)
			require.NotEmpty(t, calls)
			require.Equal(t, calls, workload(seed, 10_000, rate)[:len(calls)])
			require.LessOrEqual(t, calls[len(calls)-1].after, 6*time.Second)
			require.Greater(t, workload(seed, len(calls)+1, rate)[len(calls)].after, 6*time.Second)
		}
	}
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	t.Parallel()
	good := Config{Strategies: Strategies(), Orders: 1, Rounds: 1, Concurrency: 1}
	require.NoError(t, good.Validate())
	for what, change := range map[string]func(c *Config){
		"no strategy": func(c *Config) { c.Strategies = nil }, "no orders": func(c *Config) { c.Orders = 0 }, "too many": func(c *Config) { c.Orders = 1 << 40 },
		"NaN": func(c *Config) { c.Rate = math.NaN() }, "Inf": func(c *Config) { c.Rate = math.Inf(1) }, "negative": func(c *Config) { c.Rate = -1 },
		"no order meets the fault": func(c *Config) { c.FaultRate = 0.1 }, "fault NaN": func(c *Config) { c.FaultRate = math.NaN() },
		"fault too many": func(c *Config) { c.FaultRate = 1e15 }, "no caller": func(c *Config) { c.Concurrency = 0 },
	} {
		bad := good
		change(&bad)
		require.Error(t, bad.Validate(), what)
	}
}
