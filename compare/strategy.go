package compare

import (
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

// Strategy is one way to deliver the events of a local transaction.
type Strategy struct {
	// Name is what the command line and the report call it. "outbox" chooses every name that begins with "outbox/".
	Name string
	// Delivery is what its rows carry.
	Delivery halfbox.Delivery
	// About is one line for the report.
	About string
	// Settings are what it needs of the service's configuration, by environment variable.
	Settings map[string]string
	// NeedsMySQL is why it cannot run on another database; empty when it can.
	NeedsMySQL string
	// InDoubt tells that an event can be on its way without a trace in any table, as an open half message is: nobody
	// may call it lost before the broker has asked.
	InDoubt bool
	// Open makes a strategy that the service does not have by itself; nil for those it has.
	Open func(Parts) order.Publisher
}

// Parts are what a strategy is made of.
type Parts struct {
	DB     *database.DB
	Sink   outbox.Sink // sends to RocketMQ at once
	Topic  string
	Logger *zap.Logger
}

// Strategies are the strategies that can be compared. A new one that satisfies PublishInTx joins by one line.
func Strategies() []Strategy {
	return []Strategy{
		{Name: "txmsg", Delivery: halfbox.DeliveryTxmsg, InDoubt: true, About: "RocketMQ transactional message, outbox as its fallback"},
		{Name: "outbox/skip-locked", Delivery: halfbox.DeliveryOutbox, About: "event record, claimed by SELECT ... FOR UPDATE SKIP LOCKED", Settings: map[string]string{"HALFBOX_OUTBOX_CLAIM": "skip-locked"}, NeedsMySQL: "SQLite has no SKIP LOCKED"},
		{Name: "outbox/conditional-update", Delivery: halfbox.DeliveryOutbox, About: "event record, claimed by a conditional UPDATE", Settings: map[string]string{"HALFBOX_OUTBOX_CLAIM": "conditional-update"}},
		{Name: Naive, Delivery: Naive, About: "send after commit: the control, loses events", Open: openNaive},
	}
}

// Choose picks strategies by name, separated by commas, from all. A name also chooses those below it: "outbox" is every
// "outbox/...".
func Choose(all []Strategy, list string) ([]Strategy, error) {
	var chosen []Strategy
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		found := false
		for _, s := range all {
			if s.Name != name && !strings.HasPrefix(s.Name, name+"/") {
				continue
			}
			found = true
			if !slices.ContainsFunc(chosen, func(c Strategy) bool { return c.Name == s.Name }) {
				chosen = append(chosen, s)
			}
		}
		if !found || name == "" {
			return nil, fmt.Errorf("strategy %q: there are %s", name, names(all))
		}
	}
	return chosen, nil
}

func names(all []Strategy) string {
	var out []string
	for _, s := range all {
		out = append(out, s.Name)
	}
	return strings.Join(out, ", ")
}
