package compare

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// made is a report whose numbers are known: b is 30 % slower than a, c is a's twin, naive loses.
func made() *Report {
	r := &Report{
		Schema: SchemaVersion, Engines: "embedded", Command: "halfbox compare", Version: "test", Seed: 1,
		Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Ended: time.Date(2026, 1, 2, 3, 5, 5, 0, time.UTC),
		Conditions: []Condition{{"machine", "a <machine> & more"}}, Judged: map[string]Judgement{},
		Strategies: []StrategyReport{
			{Name: "a", About: "first"},
			{Name: "b", About: "second"},
			{Name: "c", About: "third"},
			{Name: "d", About: "fourth", NotRun: "needs something else"},
		},
	}
	for name, base := range map[string]float64{"a": 10, "b": 13, "c": 10.05} {
		for round := range 5 {
			wobble := 1 + 0.01*float64((round*7+len(name))%5)
			s := Samples{}
			for i := range 100 {
				s.AtMS = append(s.AtMS, float64(i))
				s.LatencyMS = append(s.LatencyMS, base*wobble+float64(i)/100)
				s.Outcome = append(s.Outcome, Created)
				s.BrokerMS = append(s.BrokerMS, 2)
				s.CreditMS = append(s.CreditMS, 3+float64(i)/10)
			}
			r.Rounds = append(r.Rounds, Round{Strategy: name, Round: round + 1, Seconds: base * wobble / 10, Settled: true, Used: Counters{OrderSQL: 300, BrokerSends: 100, BrokerRequests: 100, CPUSeconds: 0.2}, Samples: s})
		}
		r.Judged[name] = Judgement{Committed: 500}
	}
	result := func(name string, lost int) FaultResult {
		return FaultResult{
			Strategy: name, FromMS: 2000, ToMS: 5000, Saw: map[Outcome]int{Created: 90, NoAnswer: 10}, P99MS: 12, RecoverySeconds: 1.5,
			Judged: Judgement{Committed: 100, Lost: lost}, TimelineStepMS: 500, Committed: []int{5, 5, 5, 5}, Accepted: []int{5, 5, 5, 5}, Credited: []int{4, 5, 0, 11 - lost},
		}
	}
	r.Faults = []FaultReport{
		{Fault: FaultKill, About: FaultKill.About(), Rate: 10, Results: []FaultResult{result("a", 0), result("b", 0), result("c", 1)}},
		{Fault: FaultDBRestart, About: FaultDBRestart.About(), NotRun: "no server"},
	}
	r.sumUp(map[string]float64{"a": 340, "b": 1600, "c": 340})
	return r
}

func texts(r *Report, kind string) (out []string) {
	for _, f := range r.Findings {
		if f.Kind == kind {
			out = append(out, f.Text)
		}
	}
	return out
}

func TestReportNamesTheSlowOne(t *testing.T) {
	t.Parallel()
	r := made()
	require.Contains(t, strings.Join(texts(r, "difference"), "\n"), "API latency p50: a is better than b")
	require.Contains(t, strings.Join(texts(r, "no-difference"), "\n"), "API latency p50: no difference shown between a and c")
	for _, m := range r.Metrics {
		if m.Key == "api_p50" {
			require.Equal(t, "a", m.Best)
			require.False(t, m.wins("a"), "its twin cannot be told from it")
		}
	}
}

func TestReportNamesTheLoss(t *testing.T) {
	t.Parallel()
	r := made()
	require.Equal(t, []string{"kill, c: 1 of 100 committed orders LOST, their points never come."}, texts(r, "loss"))
	require.Equal(t, []string{"No order lost, none wrong, whatever went wrong: a, b."}, texts(r, "no-loss"))
}

func TestTables(t *testing.T) {
	t.Parallel()
	r := made()
	var cells []string
	for _, row := range append(r.PerformanceTable(), r.FaultTable()...) {
		cells = append(cells, strings.Join(row, "|"))
	}
	text := strings.Join(cells, "\n")
	require.Contains(t, text, "lost|orders|0 of 500|0 of 500|0 of 500|n/a")
	require.Contains(t, text, "kill|c|1 of 100|0|0|1.5 s|12.0 ms|201: 90, no answer: 10")
	require.Contains(t, text, "db-restart|all|n/a")
	require.Contains(t, r.Markdown(), "| kill | c | 1 of 100 |")
}

func TestBooks(t *testing.T) {
	t.Parallel()
	orders := map[string]orderRow{
		"1": {OrderNo: "1", UserID: 1, AmountCents: 199}, "2": {OrderNo: "2", UserID: 2, AmountCents: 500},
		"3": {OrderNo: "3", UserID: 3, AmountCents: 100}, "4": {OrderNo: "4", UserID: 4, AmountCents: 100},
	}
	good := []ledgerRow{{"1", 1, 1}, {"2", 2, 5}, {"3", 3, 1}, {"4", 4, 1}}
	require.Equal(t, Judgement{Committed: 4}, compareBooks(orders, good))
	require.Equal(t, Judgement{Committed: 4, Lost: 1}, compareBooks(orders, good[:3]))
	require.Equal(t, Judgement{Committed: 4, Phantom: 1}, compareBooks(orders, append(good, ledgerRow{"5", 1, 1})))
	require.Equal(t, Judgement{Committed: 4, Wrong: 1}, compareBooks(orders, append(good[:4:4], ledgerRow{"1", 1, 1})), "twice")
	require.Equal(t, Judgement{Committed: 4, Lost: 2, Wrong: 2}, compareBooks(orders, []ledgerRow{{"1", 1, 2}, {"2", 9, 5}}), "amount, user")
}

func TestChoose(t *testing.T) {
	t.Parallel()
	chosen, err := Choose(Strategies(), "naive, outbox")
	require.NoError(t, err)
	require.Equal(t, "naive, outbox/skip-locked, outbox/conditional-update", names(chosen))
	for _, bad := range []string{"", "outb", "txmsg,,naive", "kafka"} {
		_, err := Choose(Strategies(), bad)
		require.ErrorContains(t, err, "there are txmsg", bad)
	}
	faults, err := ParseFaults("kill,none,kill")
	require.NoError(t, err)
	require.Equal(t, []Fault{FaultKill, FaultNone}, faults)
	_, err = ParseFaults("fire")
	require.ErrorContains(t, err, "fire")
	for _, f := range Faults() {
		require.NotEmpty(t, f.About(), f)
	}
}

func TestRecordsSurviveATornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "records")
	rec, err := NewRecorder(path)
	require.NoError(t, err)
	at := time.Unix(100, 5)
	rec.line("c %s %d\n", "m1", at.UnixNano())
	rec.Delivered("m1", "o1", at, at.Add(1), at.Add(2))
	rec.Delivered("m1", "o1", at, at.Add(3), at.Add(4))
	rec.line("d m2 o2 17") // the process was killed here
	require.NoError(t, rec.Close())
	got, err := readRecords(path)
	require.NoError(t, err)
	require.Equal(t, at, got.committed["m1"])
	require.Len(t, got.deliveries, 2)
	require.Equal(t, at.Add(2), got.first()["o1"].handled)
}

// The page and docs/choosing.md hold the same decision table, and each of its links leads somewhere.
func TestDecisionTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/choosing.md")
	require.NoError(t, err)
	const begin, end = "<!-- decision table: begin -->\n", "<!-- decision table: end -->"
	before, rest, found := strings.Cut(string(doc), begin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, end)
	require.True(t, found)
	want := before + begin + DecisionMarkdown() + end + after
	if os.Getenv("UPDATE_DECISION") == "1" {
		require.NoError(t, os.WriteFile("../docs/choosing.md", []byte(want), 0o600))
	}
	require.Equal(t, want, string(doc), "UPDATE_DECISION=1 go test ./compare -run DecisionTable writes it")

	metrics := map[string]bool{bytesMetric().Key: true}
	for _, m := range metricDefs() {
		metrics[m.Key] = true
	}
	for _, row := range Decision() {
		require.Len(t, row.Cells, len(decisionColumns()), row.Title)
		for _, c := range row.Cells {
			switch e := c.Evidence; {
			case e.Metric != "":
				require.True(t, metrics[e.Metric], e.Metric)
			case e.Fault != "":
				require.Contains(t, Faults(), e.Fault)
			default:
				requireAnchor(t, "../"+e.Doc)
			}
		}
	}
	// The links of the documents themselves, the table's among them.
	for _, name := range []string{"choosing.md", "comparison.md"} {
		text, err := os.ReadFile("../docs/" + name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			switch {
			case strings.Contains(m[1], "://"):
			case strings.HasPrefix(m[1], "#"):
				requireAnchor(t, "../docs/"+name+m[1])
			default:
				requireAnchor(t, "../docs/"+m[1])
			}
		}
	}
}

// requireAnchor looks for the file and, when the link has one, for the heading that makes the anchor.
func requireAnchor(t *testing.T, link string) {
	t.Helper()
	path, anchor, _ := strings.Cut(link, "#")
	text, err := os.ReadFile(path)
	require.NoError(t, err, link)
	if anchor == "" {
		return
	}
	clean := regexp.MustCompile(`[^a-z0-9 _-]`)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		if strings.ReplaceAll(clean.ReplaceAllString(heading, ""), " ", "-") == anchor {
			return
		}
	}
	require.Fail(t, "no heading for "+link)
}

// Every link on the page that stays on it has its target.
func TestPageLinksResolve(t *testing.T) {
	t.Parallel()
	r := made()
	html, err := r.HTML()
	require.NoError(t, err)
	text := string(html)
	for _, m := range regexp.MustCompile(`href="(#?)([^"]+)"`).FindAllStringSubmatch(text, -1) {
		switch {
		case m[1] == "#":
			require.Contains(t, text, `id="`+m[2]+`"`)
		case strings.HasPrefix(m[2], repository):
			requireAnchor(t, "../"+strings.TrimPrefix(m[2], repository))
		}
	}
	require.Contains(t, text, "a &lt;machine&gt; &amp; more", "texts are escaped")
	require.NotContains(t, text, "ZgotmplZ")
}

func TestRecovery(t *testing.T) {
	t.Parallel()
	at := func(seconds float64) time.Time { return time.Unix(0, int64(seconds*1e9)) }
	w := window{from: at(2), to: at(5), back: at(7)}
	orders := map[string]orderRow{"before": {CreatedAt: at(4)}, "after": {CreatedAt: at(5.5)}, "marker": {CreatedAt: at(4), UserID: markerUser}}
	rec := records{deliveries: []delivery{{orderNo: "before", handled: at(4.5)}, {orderNo: "after", handled: at(30)}, {orderNo: "marker", handled: at(40)}}}
	accepted := []sample{{outcome: Created, done: at(4)}, {outcome: NoAnswer, done: at(5.1)}, {outcome: Created, done: at(6)}}
	require.Equal(t, 2*time.Second, recovery(nil, orders, rec, w), "the service is back")
	require.Equal(t, time.Second, recovery(accepted, orders, rec, w), "orders are accepted again")
	rec.deliveries[0].handled = at(8)
	require.Equal(t, 3*time.Second, recovery(accepted, orders, rec, w), "the backlog is credited")
}
