// Package doctor looks at the engines before the service does and says what would go wrong, and what to do about it.
// It reads and changes nothing.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/remoting"
)

// Verdict is what a check came to.
type Verdict string

// The verdicts. Bad makes the doctor's exit code 1; a warning is worth knowing.
const (
	OK      Verdict = "ok"
	Warning Verdict = "warning"
	Bad     Verdict = "bad"
)

// Finding is the result of one check.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Remedy  string  `json:"remedy,omitempty"` // of what is not ok
}

// Config is what is looked at.
type Config struct {
	Databases []Database
	// Cluster is nil when the in-process broker is used: the configuration has been checked against its settings.
	Cluster *Cluster
	Times   Times
}

// Database is one of the service's databases.
type Database struct {
	Name string
	DB   *database.DB
	// Unusable says why there is no DB: its configuration cannot be used. Remedy says what to do about that.
	Unusable error
	Remedy   string

	Lines []database.Line
	Plans []Plan
}

// Cluster is a RocketMQ cluster.
type Cluster struct {
	NameServers []string
	Credentials remoting.Credentials
	Topics      []string
	// CreatesTopics tells that the service makes topics that are not there.
	CreatesTopics bool
	Groups        []string // consumer groups, whose retry topics should be there
	// DiscardedTopic is where brokers put half messages that they give up on, and RescueGroup the consumer group that
	// reads it; empty when nobody does.
	DiscardedTopic, RescueGroup string
}

// Times are the deadlines that must follow one another with the broker's.
type Times struct {
	Local time.Duration // txmsg.local_timeout
	Grace time.Duration // checkback.grace
}

// Run makes every check. A check that cannot be made because an earlier one failed is left out.
func Run(ctx context.Context, cfg Config) []Finding {
	r := &report{}
	for _, d := range cfg.Databases {
		r.database(ctx, d)
	}
	if cfg.Cluster != nil {
		r.cluster(ctx, *cfg.Cluster, cfg.Times)
	}
	return r.findings
}

// report collects findings.
type report struct{ findings []Finding }

func (r *report) ok(check, format string, args ...any) {
	r.findings = append(r.findings, Finding{Check: check, Verdict: OK, Detail: fmt.Sprintf(format, args...)})
}

func (r *report) bad(check, detail, remedy string) {
	r.findings = append(r.findings, Finding{Check: check, Verdict: Bad, Detail: detail, Remedy: remedy})
}

func (r *report) warn(check, detail, remedy string) {
	r.findings = append(r.findings, Finding{Check: check, Verdict: Warning, Detail: detail, Remedy: remedy})
}
