package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// findings says what the numbers show: losses and wrong bookings first, which are counted and not estimated, then the
// differences that exceed the spread.
func findings(r *Report) (out []Finding) {
	for _, name := range r.ran() {
		if j, ok := r.Judged[name]; ok {
			out = append(out, judged(FaultNone, name, j)...)
		} else if why := r.NotJudged[name]; why != "" {
			out = append(out, notJudged(FaultNone, name, why))
		}
	}
	for _, f := range r.Faults {
		for _, res := range f.Results {
			if res.Judged == nil {
				out = append(out, notJudged(f.Fault, res.Strategy, res.NotJudged))
				continue
			}
			out = append(out, judged(f.Fault, res.Strategy, *res.Judged)...)
		}
	}
	faults, safe := withoutLoss(r)
	if i := slices.Index(safe, Naive); i >= 0 {
		safe = slices.Delete(safe, i, i+1)
		out = append(out, Finding{Kind: "luck", Strategy: Naive, Text: fmt.Sprintf("naive lost nothing under %s this time: nothing promises that, no call was between COMMIT and send when it mattered.", strings.Join(faults, ", "))})
	}
	if len(safe) > 0 {
		out = append(out, Finding{Kind: "no-loss", Text: fmt.Sprintf("No order lost, none wrong, under %s: %s.", strings.Join(faults, ", "), strings.Join(safe, ", "))})
	}
	if n := r.rounds(); len(r.Rounds) > 0 && n < minRounds {
		out = append(out, Finding{Kind: "few-rounds", Text: fmt.Sprintf("No winner can be named: that takes %d rounds at least, this run has %d.", minRounds, n)})
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
	switch {
	case j.Unsettled != "":
		add("unsettled", "whether orders are lost cannot be said: %s.", j.Unsettled)
	case j.Lost > 0:
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

// notJudged is the finding that there is nothing to say.
func notJudged(f Fault, name, why string) Finding {
	return Finding{Kind: "not-judged", Fault: f, Strategy: name, Text: fmt.Sprintf("%s, %s: lost and wrong are not known: %s.", f, name, why)}
}

// withoutLoss names the faults that were made and judged, and the strategies that went through all of them with orders
// and lost nothing.
func withoutLoss(r *Report) (faults, safe []string) {
	bad := map[string]bool{}
	for name, j := range r.Judged {
		bad[name] = j.Lost+j.bad() > 0 || j.Unsettled != ""
	}
	for name := range r.NotJudged {
		bad[name] = true
	}
	for _, f := range r.Faults {
		for _, res := range f.Results {
			j := res.Judged
			bad[res.Strategy] = bad[res.Strategy] || j == nil || j.Committed == 0 || j.Lost+j.bad() > 0 || j.Unsettled != ""
		}
		if len(f.Results) > 0 {
			faults = append(faults, string(f.Fault))
		}
	}
	for _, name := range r.ran() {
		if len(faults) > 0 && !bad[name] {
			safe = append(safe, name)
		}
	}
	return faults, safe
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
	var ties []string // those with too few rounds are not alike, only unknown
	for _, other := range m.Ties {
		if len(best.Rounds) >= minRounds && len(m.Values[other].Rounds) >= minRounds {
			ties = append(ties, other)
		}
	}
	if len(ties) > 0 {
		out = append(out, Finding{Kind: "no-difference", Metric: m.Key, Strategy: m.Best, Text: fmt.Sprintf("%s: no difference shown between %s; it lies within the spread of the rounds.",
			m.Title, strings.Join(append([]string{m.Best}, ties...), " and "))})
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
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	if v != 0 { // first, because 9.999 is 10.0 and not 10.00
		unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
		if unit < 1 {
			unit = max(unit, 0.01)
			v = math.Round(v/unit) * unit
		}
	}
	abs := math.Abs(v)
	switch {
	case abs >= 100:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs == math.Trunc(abs):
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
