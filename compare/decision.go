package compare

import (
	"fmt"
	"strings"
)

// Evidence is what backs a cell of the decision table: a measured metric, a measured fault, or a document.
type Evidence struct {
	// Metric is the key of a Metric, Fault a Fault, Doc a path in the repository with an optional #anchor. One is set.
	Metric string
	Fault  Fault
	Doc    string
}

// DecisionCell is what one way is like in one respect.
type DecisionCell struct {
	Text     string
	Evidence Evidence
}

// DecisionRow is one respect.
type DecisionRow struct {
	Title string
	Cells []DecisionCell // as the columns
}

// decisionColumns are the ways.
func decisionColumns() []string {
	return []string{"txmsg", "outbox", "best-effort notification", "TCC", "Saga"}
}

func measured(text, metric string) DecisionCell { return DecisionCell{text, Evidence{Metric: metric}} }
func broken(text string, f Fault) DecisionCell  { return DecisionCell{text, Evidence{Fault: f}} }
func written(text, doc string) DecisionCell     { return DecisionCell{text, Evidence{Doc: doc}} }

// Decision is the decision table: when to take which. docs/choosing.md holds the same table, and a test compares them.
func Decision() []DecisionRow {
	const (
		choosing   = "docs/choosing.md"
		guarantees = "docs/guarantees.md"
		operations = "docs/operations.md"
		notify     = choosing + "#best-effort-notification"
		undo       = choosing + "#when-the-upstream-must-be-undone"
	)
	return []DecisionRow{
		{"Take it when", []DecisionCell{
			written("RocketMQ is there anyway, the event must reach it within milliseconds, and the database should not carry the events", guarantees+"#txmsg"),
			written("the database is the only thing you can rely on, the destination is not RocketMQ, or the broker may be away for hours", guarantees+"#outbox"),
			written("losing a message costs nothing, or somebody else compares both sides anyway", notify),
			written("the other side must be reserved before you commit, and can be given back", undo),
			written("many services take part, each can be undone by another step, and others may see the steps in between", undo),
		}},
		{"Depends on", []DecisionCell{
			written("RocketMQ with transactional messages; a producer that is there to be asked; the outbox as fallback", guarantees+"#conditions"),
			written("the order database alone; a relay that runs", guarantees+"#outbox"),
			written("a broker or an HTTP endpoint", notify),
			written("every participant with try, confirm and cancel; a coordinator with a log of its own", undo),
			written("every participant with a compensation; an orchestrator or a chain of events, each step by txmsg or outbox", undo),
		}},
		{"Consistency window", []DecisionCell{
			measured("commit to credit in the time of two messages; after a crash until the broker asks", "credit_p50"),
			measured("the time of the relay's next claim and batch; after a relay's crash until its lease ends", "credit_p50"),
			broken("open for ever for what is lost", FaultBrokerOutage),
			written("none towards the reserved part: it is held until confirm or cancel", undo),
			written("until the last step or the last compensation; in between everybody sees it", undo),
		}},
		{"Write cost", []DecisionCell{
			measured("no row beside the order's own", "db_bytes_per_order"),
			measured("one more row per event, updated twice, purged later", "db_bytes_per_order"),
			measured("none", "db_bytes_per_order"),
			written("one reservation and one confirmation per participant, and the coordinator's log", undo),
			written("one transaction per step, and the state of the saga", undo),
		}},
		{"Latency for the caller", []DecisionCell{
			measured("one round trip to the broker before the local transaction", "api_p50"),
			measured("that of the local transaction", "api_p50"),
			measured("one round trip to the broker after the commit, if it waits", "api_p50"),
			written("at least two rounds to every participant", undo),
			written("that of the first step", undo),
		}},
		{"Load on the broker", []DecisionCell{
			measured("two requests per event, never batched", "requests_per_order"),
			measured("one request per batch", "requests_per_order"),
			measured("one request per event", "requests_per_order"),
			written("none: it is synchronous", undo),
			written("as the strategy that carries its steps", undo),
		}},
		{"When the broker is away", []DecisionCell{
			broken("the fallback takes over: orders go on, after one half_timeout until the breaker opens", FaultBrokerOutage),
			broken("orders do not notice", FaultBrokerOutage),
			broken("events are lost", FaultBrokerOutage),
			written("does not apply; a participant that is away stops everything", undo),
			written("as the strategy that carries its steps", undo),
		}},
		{"When the process dies", []DecisionCell{
			broken("the broker asks, any instance answers from the database", FaultKill),
			broken("the lease ends, another relay sends", FaultKill),
			broken("what was committed and not yet sent is lost", FaultKill),
			written("the coordinator goes on from its log: confirm and cancel must bear repetition and arrive in any order", undo),
			written("the orchestrator goes on from its state", undo),
		}},
		{"When COMMIT's answer is lost", []DecisionCell{
			broken("the caller is told so, and the check-back finds out", FaultAnswerLoss),
			broken("the caller is told so, and the record is in the table or is not", FaultAnswerLoss),
			broken("the order is there and its event is not sent", FaultAnswerLoss),
			written("participants stay reserved until the coordinator has asked", undo),
			written("as the strategy that carries its steps", undo),
		}},
		{"Operations", []DecisionCell{
			written("broker times must fit the local deadline; halfbox doctor checks them; in-doubt messages are watched", operations+"#3-rocketmq"),
			written("backlog, leases and dead letters are watched; sent records are purged", operations+"#6-what-to-watch"),
			written("none, and no way to know what was lost", notify),
			written("stuck reservations, time-outs, and the empty cancel", undo),
			written("stuck sagas, compensations that fail", undo),
		}},
		{"Limits", []DecisionCell{
			written("RocketMQ only; no ordering; no delay; duplicates under load", guarantees+"#txmsg"),
			written("the table is the ceiling of the throughput; unordered unless the sink is told otherwise", guarantees+"#outbox"),
			written("no guarantee at all", notify),
			written("locks resources for as long as the slowest participant takes; every participant must be written for it", undo),
			written("no isolation; some things cannot be compensated", undo),
		}},
	}
}

// decisionMarkdown is the table as Markdown. doc turns evidence into a link's text and target.
func decisionMarkdown(link func(Evidence) (label, href string)) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range decisionColumns() {
		fmt.Fprintf(&b, " %s |", c)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(decisionColumns())) + "\n")
	for _, row := range Decision() {
		fmt.Fprintf(&b, "| **%s** |", row.Title)
		for _, c := range row.Cells {
			label, href := link(c.Evidence)
			fmt.Fprintf(&b, " %s ([%s](%s)) |", c.Text, label, href)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// DecisionMarkdown is the table of docs/choosing.md: its links are relative to docs.
func DecisionMarkdown() string {
	return decisionMarkdown(func(e Evidence) (string, string) {
		switch {
		case e.Metric != "":
			return "measured", "comparison.md#nothing-going-wrong"
		case e.Fault != "":
			return "measured", "comparison.md#when-things-go-wrong"
		case strings.HasPrefix(e.Doc, "docs/choosing.md#"):
			return "why", strings.TrimPrefix(e.Doc, "docs/choosing.md")
		}
		return "why", strings.TrimPrefix(e.Doc, "docs/")
	})
}

// repository is where the documents are for a page that is read anywhere.
const repository = "https://github.com/halfbox/halfbox/blob/main/"

// shows tells whether a strategy is the measured form of a column: outbox is every claim way, naive what best effort does.
func shows(column, strategy string) bool {
	if strategy == Naive {
		return column == "best-effort notification"
	}
	return strategy == column || strings.HasPrefix(strategy, column+"/")
}

// decisionLink leads a cell of the page to the measurement on it, or to the document when this run did not measure what
// its column is about.
func (r *Report) decisionLink(column string, e Evidence) (label, href string) {
	switch {
	case e.Metric != "":
		for _, m := range r.Metrics {
			for strategy := range m.Values {
				if m.Key == e.Metric && shows(column, strategy) {
					return "measured", "#m-" + e.Metric
				}
			}
		}
		return "measured elsewhere", repository + "docs/comparison.md#nothing-going-wrong"
	case e.Fault != "":
		for _, f := range r.Faults {
			for _, res := range f.Results {
				if f.Fault == e.Fault && shows(column, res.Strategy) && res.Judged != nil {
					return "measured", "#f-" + string(e.Fault)
				}
			}
		}
		return "measured elsewhere", repository + "docs/comparison.md#when-things-go-wrong"
	}
	return "why", repository + e.Doc
}
