package compare

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"strings"
	"time"
)

//go:embed assets
var assets embed.FS

// page is what the template shows.
type page struct {
	Report        *Report
	Began, Took   string
	CSS, PlotCSS  template.CSS
	JS, PlotJS    template.JS
	Cards         []pageCard
	Strategies    []pageStrategy
	Metrics       []pageMetric
	Counts        []pageCount
	Distributions []pageDistribution
	Faults        []pageFault
	Decision      pageDecision
	Data          pageData
}

type pageCard struct{ Class, Label, Text string }

type pageStrategy struct {
	StrategyReport
	Parts []string // of the name, which may be broken between them
	Slot  int
	Dash  string
}

type pageMetric struct {
	Metric
	Cells []pageCell
}

// pageCell is one number with its range, drawn on a scale that all strategies share.
type pageCell struct {
	NA, Win          bool
	Median, Range    string
	Left, Width, Mid float64
	Slot             int
	Text             string
	Bad              bool
}

type pageCount struct {
	Key, Title string
	Cells      []pageCell
}

type pageDistribution struct {
	ID, Title, About string
	Rows             []pageRow
	curves           map[string][]float64
}

type pageRow struct {
	Name   string
	Values []string
}

type pageFault struct {
	FaultReport
	ID      string
	Results []pageResult
}

type pageResult struct {
	FaultResult
	LostText, Wrong, Repeated string
	Lost, Bad                 bool
	Recovery, P99, Saw        string
}

type pageDecision struct {
	Columns []string
	Rows    []pageDecisionRow
}

type pageDecisionRow struct {
	Title string
	Cells []pageDecisionCell
}

type pageDecisionCell struct{ Text, Label, Href string }

// pageData is what the script draws.
type pageData struct {
	Strategies    []string           `json:"strategies"`
	At            []float64          `json:"at"`
	Distributions []dataDistribution `json:"distributions"`
	Faults        []dataFault        `json:"faults"`
}

type dataDistribution struct {
	ID     string               `json:"id"`
	Curves map[string][]float64 `json:"curves"`
}

type dataFault struct {
	ID      string       `json:"id"`
	From    float64      `json:"from"`
	To      float64      `json:"to"`
	Step    float64      `json:"step"`
	Results []dataResult `json:"results"`
}

type dataResult struct {
	Strategy string `json:"strategy"`
	Credited []int  `json:"credited"`
	Open     []int  `json:"open"`
}

// dashes are the strokes of the legend, as in page.js.
func dashes() []string { return []string{"", "7 4", "2 3", "10 4 2 4", "4 4", ""} }

// HTML is the page: one file that loads nothing.
func (r *Report) HTML() ([]byte, error) {
	p := page{
		Report: r, Began: r.Began.Format("2006-01-02 15:04 MST"), Took: r.Ended.Sub(r.Began).Round(time.Second).String(),
		Cards: r.cards(), Metrics: r.pageMetrics(), Counts: r.pageCounts(), Distributions: r.distributions(), Faults: r.pageFaults(),
		Decision: r.pageDecision(),
	}
	for i, s := range r.Strategies {
		p.Strategies = append(p.Strategies, pageStrategy{s, strings.Split(s.Name, "/"), i % len(dashes()), dashes()[i%len(dashes())]})
	}
	p.Data = r.pageData(p.Distributions)
	text := map[string]string{}
	for _, name := range []string{"page.html.tmpl", "page.css", "page.js", "uPlot.min.css", "uPlot.iife.min.js"} {
		b, err := assets.ReadFile("assets/" + name)
		if err != nil {
			return nil, fmt.Errorf("write the page: %w", err)
		}
		text[name] = string(b)
	}
	p.CSS, p.PlotCSS = template.CSS(text["page.css"]), template.CSS(text["uPlot.min.css"])
	p.JS, p.PlotJS = template.JS(text["page.js"]), template.JS(text["uPlot.iife.min.js"])
	t, err := template.New("page").Parse(text["page.html.tmpl"])
	if err != nil {
		return nil, fmt.Errorf("write the page: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("write the page: %w", err)
	}
	return b.Bytes(), nil
}

// cards are the findings to read first.
func (r *Report) cards() (cards []pageCard) {
	for _, f := range r.Findings {
		switch f.Kind {
		case "loss":
			cards = append(cards, pageCard{"bad", "Lost", f.Text})
		case "wrong":
			cards = append(cards, pageCard{"bad", "Wrong", f.Text})
		case "unsettled":
			cards = append(cards, pageCard{"bad", "Unsettled", f.Text})
		case "not-judged":
			cards = append(cards, pageCard{"note", "Not judged", f.Text})
		case "luck":
			cards = append(cards, pageCard{"note", "Luck", f.Text})
		case "few-rounds":
			cards = append(cards, pageCard{"note", "Few rounds", f.Text})
		case "no-loss":
			cards = append(cards, pageCard{"good", "Nothing lost", f.Text})
		}
	}
	return cards
}

func (r *Report) pageMetrics() (out []pageMetric) {
	for _, m := range r.Metrics {
		row := pageMetric{Metric: m}
		top := 0.0
		for _, v := range m.Values {
			top = max(top, v.Max)
		}
		for i, s := range r.Strategies {
			v := m.Values[s.Name]
			if v == nil {
				row.Cells = append(row.Cells, pageCell{NA: true})
				continue
			}
			c := pageCell{Median: number(v.Median), Win: m.wins(s.Name), Slot: i % len(dashes())}
			if v.Min != v.Max {
				c.Range = number(v.Min) + " – " + number(v.Max)
			}
			if top > 0 {
				c.Left, c.Width, c.Mid = 100*v.Min/top, 100*(v.Max-v.Min)/top, 100*v.Median/top
			}
			row.Cells = append(row.Cells, c)
		}
		out = append(out, row)
	}
	return out
}

func (r *Report) pageCounts() (out []pageCount) {
	for _, count := range judgementRows() {
		row := pageCount{Key: count.key, Title: count.title}
		for _, s := range r.Strategies {
			j, ok := r.Judged[s.Name]
			n := count.of(j)
			row.Cells = append(row.Cells, pageCell{NA: !ok, Text: count.text(j), Bad: n > 0 && count.bad})
		}
		out = append(out, row)
	}
	return out
}

// distributions put the samples of all rounds together.
func (r *Report) distributions() (out []pageDistribution) {
	for _, d := range []struct {
		id, title, about string
		of               func(Samples) []float64
	}{
		{"d-api", "API latency", "what the caller waits for 201", func(s Samples) []float64 { return s.LatencyMS }},
		{"d-broker", "Commit to broker", "until the broker has stored the message; its clock has whole milliseconds", func(s Samples) []float64 { return s.BrokerMS }},
		{"d-credit", "Commit to credit", "until the consumer has committed the points", func(s Samples) []float64 { return s.CreditMS }},
	} {
		dist := pageDistribution{ID: d.id, Title: d.title, About: d.about, curves: map[string][]float64{}}
		for _, name := range r.ran() {
			var all []float64
			for _, round := range r.Rounds {
				if round.Strategy == name {
					all = append(all, round.Samples.column(d.of(round.Samples))...)
				}
			}
			if len(all) == 0 {
				continue
			}
			dist.curves[name] = curve(all)
			row := pageRow{Name: name}
			for _, q := range []float64{0.5, 0.9, 0.99, 1} {
				row.Values = append(row.Values, number(quantile(all, q)))
			}
			dist.Rows = append(dist.Rows, row)
		}
		if len(dist.curves) > 0 {
			out = append(out, dist)
		}
	}
	return out
}

func (r *Report) pageFaults() (out []pageFault) {
	for _, f := range r.Faults {
		pf := pageFault{FaultReport: f, ID: "p-" + string(f.Fault)}
		for _, res := range f.Results {
			row := pageResult{
				FaultResult: res, LostText: notRun, Wrong: notRun, Repeated: notRun, Recovery: known(res.RecoverySeconds, "s"), P99: known(res.P99MS, "ms"), Saw: res.saw(),
			}
			if j := res.Judged; j != nil {
				row.LostText, row.Wrong, row.Repeated = j.lost(), fmt.Sprint(j.bad()), fmt.Sprint(j.Duplicates)
				row.Lost, row.Bad = j.Lost > 0, j.bad() > 0
			}
			pf.Results = append(pf.Results, row)
		}
		out = append(out, pf)
	}
	return out
}

func (r *Report) pageDecision() pageDecision {
	d := pageDecision{Columns: decisionColumns()}
	for _, row := range Decision() {
		pr := pageDecisionRow{Title: row.Title}
		for i, c := range row.Cells {
			label, href := r.decisionLink(d.Columns[i], c.Evidence)
			pr.Cells = append(pr.Cells, pageDecisionCell{Text: c.Text, Label: label, Href: href})
		}
		d.Rows = append(d.Rows, pr)
	}
	return d
}

func (r *Report) pageData(dists []pageDistribution) pageData {
	d := pageData{At: curveAt(), Strategies: []string{}, Distributions: []dataDistribution{}, Faults: []dataFault{}}
	for _, s := range r.Strategies {
		d.Strategies = append(d.Strategies, s.Name)
	}
	for _, dist := range dists {
		d.Distributions = append(d.Distributions, dataDistribution{dist.ID, dist.curves})
	}
	for _, f := range r.Faults {
		if len(f.Results) == 0 {
			continue
		}
		df := dataFault{ID: "p-" + string(f.Fault), From: -1, To: -1}
		for _, res := range f.Results {
			df.Step = max(df.Step, res.TimelineStepMS)
			// The window of all: kills end when the service that is started in between lets them.
			if res.FromMS >= 0 && (df.From < 0 || res.FromMS < df.From) {
				df.From = res.FromMS
			}
			df.To = max(df.To, res.ToMS)
			df.Results = append(df.Results, dataResult{res.Strategy, res.Credited, res.open()})
		}
		// Every line goes to the end of the longest: one that stays up is loss.
		longest := 0
		for _, res := range df.Results {
			longest = max(longest, len(res.Open))
		}
		for i := range df.Results {
			for open := df.Results[i].Open; len(open) > 0 && len(df.Results[i].Open) < longest; {
				df.Results[i].Open = append(df.Results[i].Open, open[len(open)-1])
			}
		}
		d.Faults = append(d.Faults, df)
	}
	return d
}

// open counts, at the end of each interval, the orders that are committed and have no points yet.
func (res FaultResult) open() (open []int) {
	left := 0
	for i := range max(len(res.Committed), len(res.Credited)) {
		if i < len(res.Committed) {
			left += res.Committed[i]
		}
		if i < len(res.Credited) {
			left -= res.Credited[i]
		}
		open = append(open, max(0, left))
	}
	return open
}

// Markdown is the tables, for a document.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s on the %s engines by\n\n```sh\n%s\n```\n", r.Began.Format("2006-01-02"), r.Engines, r.Command)
	if r.Partial != "" {
		fmt.Fprintf(&b, "\n**Partial:** %s.\n", r.Partial)
	}
	b.WriteString("\n| condition | |\n|---|---|\n")
	for _, c := range r.Conditions {
		fmt.Fprintf(&b, "| %s | %s |\n", c.Name, c.Value)
	}
	for _, rows := range [][][]string{r.PerformanceTable(), r.FaultTable()} {
		for i, row := range rows {
			if i == 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "| %s |\n", strings.ReplaceAll(strings.Join(row, " | "), "*", "\\*"))
			if i == 0 {
				b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
			}
		}
	}
	b.WriteString("\n")
	for _, line := range r.Highlights() {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	return b.String()
}
