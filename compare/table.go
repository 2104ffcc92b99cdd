package compare

import (
	"fmt"
	"strings"
)

// notRun is the cell of what was not measured.
const notRun = "n/a"

// PerformanceTable is the table without faults: one row per metric, one column per strategy; nil when nothing was
// measured. A winner is marked with *.
func (r *Report) PerformanceTable() [][]string {
	if len(r.Metrics) == 0 {
		return nil
	}
	rows := [][]string{{"median [min-max of the rounds]", "UNIT"}}
	for _, s := range r.Strategies {
		rows[0] = append(rows[0], s.Name)
	}
	for _, m := range r.Metrics {
		row := []string{m.Title, m.Unit}
		for _, s := range r.Strategies {
			row = append(row, m.cell(s.Name))
		}
		rows = append(rows, row)
	}
	for _, count := range judgementRows() {
		row := []string{count.title, "orders"}
		for _, s := range r.Strategies {
			j, ok := r.Judged[s.Name]
			if !ok {
				row = append(row, notRun)
				continue
			}
			row = append(row, count.text(j))
		}
		rows = append(rows, row)
	}
	return rows
}

// judgementRow is one count of a Judgement.
type judgementRow struct {
	key, title string
	of         func(Judgement) int
	bad        bool // any is bad
}

// text is the count out of all.
func (c judgementRow) text(j Judgement) string {
	if c.key == "lost" {
		return j.lost()
	}
	return fmt.Sprintf("%d of %d", c.of(j), j.Committed)
}

func judgementRows() []judgementRow {
	return []judgementRow{
		{"lost", "lost", func(j Judgement) int { return j.Lost }, true},
		{"wrong", "wrong", Judgement.bad, true},
		{"duplicates", "duplicates delivered", func(j Judgement) int { return j.Duplicates }, false},
	}
}

func (m Metric) cell(strategy string) string {
	v := m.Values[strategy]
	if v == nil {
		return notRun
	}
	cell := number(v.Median)
	if m.wins(strategy) {
		cell += "*"
	}
	if v.Min != v.Max {
		cell += fmt.Sprintf(" [%s-%s]", number(v.Min), number(v.Max))
	}
	return cell
}

// FaultTable is the table of the faults: one row per fault and strategy; nil when there was none.
func (r *Report) FaultTable() [][]string {
	if len(r.Faults) == 0 {
		return nil
	}
	rows := [][]string{{"FAULT", "STRATEGY", "LOST", "WRONG", "DUPLICATES", "RECOVERY", "API p99", "WHAT THE CALLERS SAW"}}
	for _, f := range r.Faults {
		if f.NotRun != "" {
			rows = append(rows, []string{string(f.Fault), "all", notRun, notRun, notRun, notRun, notRun, f.NotRun})
			continue
		}
		for _, res := range f.Results {
			lost, wrong, duplicates := notRun, notRun, notRun
			if j := res.Judged; j != nil {
				lost, wrong, duplicates = j.lost(), fmt.Sprint(j.bad()), fmt.Sprint(j.Duplicates)
			}
			rows = append(rows, []string{string(f.Fault), res.Strategy, lost, wrong, duplicates, known(res.RecoverySeconds, "s"), known(res.P99MS, "ms"), res.saw()})
		}
	}
	return rows
}

// known writes a time; -1 is one that is not known.
func known(v float64, unit string) string {
	switch {
	case v < 0:
		return notRun
	case unit == "s":
		return fmt.Sprintf("%.1f s", v)
	}
	return number(v) + " " + unit
}

// saw lists what the callers saw, leaving out what none did.
func (res FaultResult) saw() string {
	var parts []string
	for _, o := range Outcomes() {
		if n := res.Saw[o]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", o, n))
		}
	}
	return strings.Join(parts, ", ")
}

// Highlights are the findings that belong under a table, losses first. The differences are in the table itself.
func (r *Report) Highlights() (lines []string) {
	for _, s := range r.Strategies {
		if s.NotRun != "" {
			lines = append(lines, s.Name+": n/a, "+s.NotRun+".")
		}
	}
	for _, f := range r.Findings {
		switch f.Kind {
		case "loss", "wrong", "no-loss", "unsettled", "not-judged", "few-rounds", "luck":
			lines = append(lines, f.Text)
		}
	}
	return lines
}
