package compare

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
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
			Judged: &Judgement{Committed: 100, Lost: lost}, TimelineStepMS: 500, Committed: []int{5, 5, 5, 5}, Accepted: []int{5, 5, 5, 5}, Credited: []int{4, 5, 0, 11 - lost},
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
	require.Equal(t, []string{"No order lost, none wrong, under kill: a, b."}, texts(r, "no-loss"))
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
	orders := map[string]orderRow{"before": {CreatedAt: at(4)}, "after": {CreatedAt: at(5.5)}, "marker": {CreatedAt: at(4), UserID: markerUser}}
	rec := records{deliveries: []delivery{{orderNo: "before", handled: at(4.5)}, {orderNo: "after", handled: at(30)}, {orderNo: "marker", handled: at(40)}}}
	call := func(intended, done float64, o Outcome) sample {
		return sample{intended: at(intended), done: at(done), outcome: o}
	}
	requireTakes := func(seconds float64, samples []sample, w window, why string) {
		t.Helper()
		took, known := recovery(samples, orders, rec, w)
		require.True(t, known, why)
		require.Equal(t, time.Duration(seconds*float64(time.Second)), took, why)
	}
	killed, cut := window{from: at(2), to: at(5), back: at(7)}, window{from: at(2), to: at(5), back: at(5)}
	accepted := []sample{call(3.9, 4, Created), call(5.05, 5.1, NoAnswer), call(5.8, 6, Created)}
	requireTakes(2, nil, killed, "the service is back")
	requireTakes(1, accepted, killed, "orders are accepted again")
	requireTakes(0, []sample{call(4, 9, Unavailable), call(5.1, 5.2, Created)}, cut, "it was never away, a call from before the end does not count")
	requireTakes(1, accepted, cut, "the wire is whole again, and the service still refuses")
	requireTakes(4, append(accepted, call(8, 8.1, Unavailable), call(8.8, 9, Created)), cut, "it refuses again")
	rec.deliveries[0].handled = at(8)
	requireTakes(3, accepted, killed, "the backlog is credited")

	refusing := []sample{call(5.1, 5.2, Unavailable), call(6, 6.1, Unavailable)}
	_, known := recovery(refusing, orders, rec, cut)
	require.False(t, known, "nothing was accepted any more")
	orders["marker"] = orderRow{CreatedAt: at(11), UserID: markerUser}
	requireTakes(6, refusing, cut, "a marker was")
}

// What cannot be judged is not called lost, nor sound.
func TestUncertaintyIsSaid(t *testing.T) {
	t.Parallel()
	r := made()
	unsettled := Judgement{Committed: 100, Lost: 2, Unsettled: "orders were still on their way"}
	r.Faults[0].Results[0].Judged = &unsettled
	r.Faults[0].Results[1] = FaultResult{Strategy: "b", FromMS: -1, ToMS: -1, P99MS: -1, RecoverySeconds: -1, Saw: map[Outcome]int{Created: 3}, NotJudged: "the run ended"}
	delete(r.Judged, "c")
	r.NotJudged = map[string]string{"c": "the run ended while 4 orders were without points"}
	r.sumUp(nil)
	require.Equal(t, []string{"kill, c: 1 of 100 committed orders LOST, their points never come."}, texts(r, "loss"))
	require.Equal(t, []string{"kill, a: whether orders are lost cannot be said: orders were still on their way."}, texts(r, "unsettled"))
	require.Equal(t, []string{
		"none, c: lost and wrong are not known: the run ended while 4 orders were without points.", "kill, b: lost and wrong are not known: the run ended.",
	}, texts(r, "not-judged"))
	require.Empty(t, texts(r, "no-loss"))
	table := fmt.Sprint(r.FaultTable())
	require.Contains(t, table, "[kill a 2? of 100 0 0 1.5 s 12.0 ms")
	require.Contains(t, table, "[kill b n/a n/a n/a n/a n/a 201: 3]")
	require.Contains(t, fmt.Sprint(r.PerformanceTable()), "[lost orders 0 of 500 0 of 500 n/a n/a]")
	page, err := r.HTML()
	require.NoError(t, err)
	for _, text := range []string{"2? of 100", "n/a: the run ended<", "orders were still on their way", "Not judged"} {
		require.Contains(t, string(page), text)
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(text), `"not_judged":"the run ended"`)
}

// A strategy that no order went through has not lost nothing.
func TestNothingIsNotSound(t *testing.T) {
	t.Parallel()
	r := made()
	r.Faults[0].Results[0].Judged = &Judgement{}
	r.sumUp(nil)
	require.Equal(t, []string{"No order lost, none wrong, under kill: b."}, texts(r, "no-loss"))
}

// Fewer rounds than a winner takes do not show that two are alike either.
func TestFewRoundsSayNothing(t *testing.T) {
	t.Parallel()
	r := made()
	r.Rounds = slices.DeleteFunc(r.Rounds, func(round Round) bool { return round.Round > 3 })
	r.sumUp(nil)
	require.Equal(t, []string{"No winner can be named: that takes 5 rounds at least, this run has 3."}, texts(r, "few-rounds"))
	require.Empty(t, texts(r, "difference"))
	require.Empty(t, texts(r, "no-difference"))
	require.Empty(t, texts(made(), "few-rounds"))
}

// An interrupted run may have nothing for some of it: every form of the report must bear that.
func TestReportOfNearlyNothing(t *testing.T) {
	t.Parallel()
	r := &Report{Strategies: []StrategyReport{{Name: "a"}}, Judged: map[string]Judgement{}, Partial: "interrupted", Faults: []FaultReport{
		{Fault: FaultKill, Results: []FaultResult{{Strategy: "a", FromMS: -1, ToMS: -1, P99MS: -1, MaxMS: -1, RecoverySeconds: -1, NotJudged: "interrupted"}}},
	}}
	r.sumUp(nil)
	require.False(t, r.Empty())
	paths, err := r.WriteFiles(t.TempDir())
	require.NoError(t, err)
	require.Len(t, paths, 3)
	require.True(t, (&Report{Faults: []FaultReport{{NotRun: "no server"}}}).Empty())
}

// A report that cannot be written is noticed before minutes of measuring, and one that was there stays whole.
func TestWhereReportsCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	require.NoError(t, CheckDir(dir))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the check leaves nothing")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "report.json"), 0o700))
	require.ErrorContains(t, CheckDir(dir), "report.json is in the way")
	paths, err := made().WriteFiles(dir)
	require.ErrorContains(t, err, "report.json")
	require.Equal(t, []string{filepath.Join(dir, "report.html"), filepath.Join(dir, "report.md")}, paths, "the others are written")
	left, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3, "no half of a file")
	require.Error(t, CheckDir(filepath.Join(dir, "report.md")), "a file, not a folder")
}

// docs/comparison.md describes every field of report.json.
func TestFieldsAreDescribed(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/comparison.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(doc), "## report.json")
	require.True(t, found)
	seen := map[reflect.Type]bool{}
	var visit func(t reflect.Type)
	visit = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(typ.Elem())
		case reflect.Struct:
			if typ == reflect.TypeFor[time.Time]() || seen[typ] {
				return
			}
			seen[typ] = true
			for f := range typ.Fields() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				require.NotEmpty(t, name, f.Name)
				require.Regexp(t, "`"+name+"(\\[\\])?`", section, typ.Name())
				visit(f.Type)
			}
		}
	}
	visit(reflect.TypeFor[Report]())
	require.Len(t, seen, 12, "every struct was visited")
	for _, f := range findings(made()) {
		require.Contains(t, section, f.Kind)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", 2: "2", 0.071: "0.07", 0.004: "0", 1.234: "1.23", 9.994: "9.99", 9.999: "10.0", 10.04: "10.0", 99.94: "99.9", 99.96: "100", 123.6: "124", 3.0000000001: "3",
		-9.999: "-10.0", math.NaN(): "-", math.Inf(1): "-",
	} {
		require.Equal(t, want, number(v), v)
	}
}

// A cell says "measured" only where this run measured what its column is about.
func TestDecisionLeadsToWhatWasMeasured(t *testing.T) {
	t.Parallel()
	r := made()
	r.Strategies = []StrategyReport{{Name: "outbox/x"}}
	for i := range r.Metrics {
		r.Metrics[i].Values = map[string]*Summary{"outbox/x": r.Metrics[i].Values["a"]}
	}
	r.Faults = []FaultReport{
		{Fault: FaultKill, Results: []FaultResult{{Strategy: "outbox/x", Judged: &Judgement{Committed: 1}}, {Strategy: Naive, NotJudged: "interrupted"}}},
		{Fault: FaultAnswerLoss, NotRun: "the run ended before it"},
	}
	for _, c := range []struct {
		column string
		of     Evidence
		want   string
	}{
		{"outbox", Evidence{Metric: "api_p50"}, "#m-api_p50"},
		{"txmsg", Evidence{Metric: "api_p50"}, ""},
		{"outbox", Evidence{Fault: FaultKill}, "#f-kill"},
		{"txmsg", Evidence{Fault: FaultKill}, ""},
		{"best-effort notification", Evidence{Fault: FaultKill}, ""},
		{"outbox", Evidence{Fault: FaultAnswerLoss}, ""},
		{"outbox", Evidence{Fault: FaultBrokerOutage}, ""},
	} {
		label, href := r.decisionLink(c.column, c.of)
		if c.want == "" {
			require.Equal(t, "measured elsewhere", label, c)
			require.True(t, strings.HasPrefix(href, repository+"docs/comparison.md#"), c)
			continue
		}
		require.Equal(t, c.want, href, c)
	}
	require.True(t, shows("best-effort notification", Naive))
	require.False(t, shows("outbox", "outboxes"))
}

// That the control comes away unhurt is not put beside those that promise it.
func TestLuckOfTheControlIsNoPromise(t *testing.T) {
	t.Parallel()
	r := made()
	r.Strategies[2].Name, r.Faults[0].Results[2] = Naive, r.Faults[0].Results[1]
	r.Faults[0].Results[2].Strategy = Naive
	r.sumUp(nil)
	require.Equal(t, []string{"No order lost, none wrong, under kill: a, b."}, texts(r, "no-loss"))
	require.Len(t, texts(r, "luck"), 1)
	require.Empty(t, texts(made(), "luck"))
}
