package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// report is what a run has measured.
type report struct {
	Started time.Time     `json:"started"`
	Options publicOptions `json:"options"`
	Samples []sample      `json:"samples"`
}

// publicOptions are the options without addresses and passwords.
type publicOptions struct {
	Events  int           `json:"events"`
	Live    int           `json:"live"`
	Writers int           `json:"writers"`
	Batch   int           `json:"batch"`
	Rounds  int           `json:"rounds"`
	Slow    time.Duration `json:"slow_ns"`
}

func (o options) public() publicOptions {
	return publicOptions{Events: o.events, Live: o.live, Writers: o.writers, Batch: o.batch, Rounds: o.rounds, Slow: o.slow}
}

// sample is one peer's round. Rates are per second; lost are committed events that the broker never confirmed.
type sample struct {
	Round              int     `json:"round"`
	Peer               string  `json:"peer"`
	WritePerSecond     float64 `json:"write_per_second"`
	DrainPerSecond     float64 `json:"drain_per_second"`
	DrainLost          int     `json:"drain_lost"`
	DrainRepeated      int     `json:"drain_repeated"`
	LiveWritePerSecond float64 `json:"live_write_per_second"`
	LiveLost           int     `json:"live_lost"`
	LiveRepeated       int     `json:"live_repeated"`
	OutageLost         *int    `json:"outage_lost"`
	OutageRepeated     *int    `json:"outage_repeated"`
}

// print writes the medians over the rounds, and lost and repeated events as sums.
func (r *report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "peer\twrite/s\tdrain/s\tof bare\tlost\twrite/s live\tlost live\toutage: lost\trepeated\t")
	bare := r.median("bare", func(s sample) float64 { return s.DrainPerSecond })
	for _, name := range peerNames() {
		if r.rounds(name) == 0 {
			continue
		}
		drain := r.median(name, func(s sample) float64 { return s.DrainPerSecond })
		ratio := "-"
		if bare > 0 {
			ratio = fmt.Sprintf("%.0f %%", 100*drain/bare)
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%s\t%d\t%.0f\t%d\t%s\t%d\t\n", name,
			r.median(name, func(s sample) float64 { return s.WritePerSecond }), drain, ratio,
			r.sum(name, func(s sample) int { return s.DrainLost }),
			r.median(name, func(s sample) float64 { return s.LiveWritePerSecond }),
			r.sum(name, func(s sample) int { return s.LiveLost }), r.outageLost(name),
			r.sum(name, func(s sample) int { return s.DrainRepeated + s.LiveRepeated + deref(s.OutageRepeated) }))
	}
	_ = t.Flush() // a terminal that is gone has no reader
}

func (r *report) of(peer string) (samples []sample) {
	for _, s := range r.Samples {
		if s.Peer == peer {
			samples = append(samples, s)
		}
	}
	return samples
}

func (r *report) rounds(peer string) int { return len(r.of(peer)) }

func (r *report) median(peer string, value func(sample) float64) float64 {
	var values []float64
	for _, s := range r.of(peer) {
		if v := value(s); v > 0 { // a phase that was not reached
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

func (r *report) sum(peer string, value func(sample) int) (sum int) {
	for _, s := range r.of(peer) {
		sum += value(s)
	}
	return sum
}

func (r *report) outageLost(peer string) string {
	measured := false
	for _, s := range r.of(peer) {
		measured = measured || s.OutageLost != nil
	}
	if !measured {
		return "-"
	}
	return strconv.Itoa(r.sum(peer, func(s sample) int { return deref(s.OutageLost) }))
}

func deref(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}
