package compare

import (
	"fmt"
	"math"
	"strings"
)

// findings says what the numbers show: losses and wrong bookings first, which are counted and not estimated, then the
// differences that exceed the spread.
func findings(r *Report) (out []Finding) {
	for _, name := range r.ran() {
		if j, ok := r.Judged[name]; ok {
			out = append(out, judged(FaultNone, name, j)...)
		}
	}
	for _, f := range r.Faults {
		for _, res := range f.Results {
			out = append(out, judged(f.Fault, res.Strategy, res.Judged)...)
			if res.Unsettled != "" {
				out = append(out, Finding{Kind: "unsettled", Fault: f.Fault, Strategy: res.Strategy, Text: fmt.Sprintf("%s, %s: %s", f.Fault, res.Strategy, res.Unsettled)})
			}
		}
	}
	if safe := withoutLoss(r); len(safe) > 0 {
		out = append(out, Finding{Kind: "no-loss", Text: "No order lost, none wrong, whatever went wrong: " + strings.Join(safe, ", ") + "."})
	}
	for _, m := range r.Metrics {
		out = append(out, differences(m)...)
	}
	return out
}

// judged are the findings of one judgement.
func judged(f Fault, name string, j Judgement) (out []Finding) {
	add := func(kind, format string, args ...any) {
		out = append(out, Finding{Kind: kind, Fault: f, Strategy: name, Text: fmt.Sprintf("%s, %s: ", f, name) + fmt.Sprintf(format, args...)})
	}
	if j.Lost > 0 {
		add("loss", "%d of %d committed orders LOST, their points never come.", j.Lost, j.Committed)
	}
	if j.bad() > 0 {
		add("wrong", "%d WRONG: %d booked wrongly, %d without an order, %d balances.", j.bad(), j.Wrong, j.Phantom, j.Unbalanced)
	}
	if j.Duplicates > 0 {
		add("duplicates", "%d deliveries repeated and absorbed by the ledger.", j.Duplicates)
	}
	return out
}

// withoutLoss names the strategies that went through at least one fault and lost nothing.
func withoutLoss(r *Report) (safe []string) {
	for _, name := range r.ran() {
		faults, bad := 0, r.Judged[name].Lost+r.Judged[name].bad()
		for _, f := range r.Faults {
			for _, res := range f.Results {
				if res.Strategy == name {
					faults++
					bad += res.Judged.Lost + res.Judged.bad()
				}
			}
		}
		if faults > 0 && bad == 0 {
			safe = append(safe, name)
		}
	}
	return safe
}

// differences says whom a metric's best beats and from whom it cannot be told apart.
func differences(m Metric) (out []Finding) {
	if m.Best == "" || len(m.Values) < 2 {
		return nil
	}
	best := m.Values[m.Best]
	for _, other := range m.Beats {
		out = append(out, Finding{Kind: "difference", Metric: m.Key, Strategy: m.Best, Text: fmt.Sprintf("%s: %s is better than %s, %s against %s %s (%s).",
			m.Title, m.Best, other, number(best.Median), number(m.Values[other].Median), m.Unit, share(best.Median, m.Values[other].Median))})
	}
	if len(m.Ties) > 0 && len(best.Rounds) > 1 {
		out = append(out, Finding{Kind: "no-difference", Metric: m.Key, Strategy: m.Best, Text: fmt.Sprintf("%s: no difference shown between %s; it lies within the spread of the rounds.",
			m.Title, strings.Join(append([]string{m.Best}, m.Ties...), " and "))})
	}
	return out
}

// share says how far the other value is from the best.
func share(best, other float64) string {
	if best == 0 || math.IsNaN(other/best) {
		return "-"
	}
	return fmt.Sprintf("%+.0f %%", 100*(other/best-1))
}

// number writes a value with three significant digits, large ones whole.
func number(v float64) string {
	abs := math.Abs(v)
	switch {
	case math.IsNaN(v):
		return "-"
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs == math.Trunc(abs):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
