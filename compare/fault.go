package compare

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fault is something that goes wrong on purpose while orders come in.
type Fault string

// The faults.
const (
	FaultNone         Fault = "none"
	FaultBrokerOutage Fault = "broker-outage"
	FaultDBRestart    Fault = "db-restart"
	FaultKill         Fault = "kill"
	FaultSlowBroker   Fault = "slow-broker"
	FaultAnswerLoss   Fault = "answer-loss"
)

// The sizes of the faults.
const (
	faultBefore = 1500 * time.Millisecond // orders come in before it
	faultLasts  = 3 * time.Second
	faultAfter  = 2 * time.Second // and after it
	slowBy      = 300 * time.Millisecond
	killTimes   = 4
	loseEvery   = 3 // every third COMMIT's answer is lost
)

// Faults lists every fault, none first.
func Faults() []Fault {
	return []Fault{FaultNone, FaultKill, FaultBrokerOutage, FaultAnswerLoss, FaultSlowBroker, FaultDBRestart}
}

// About says what the fault does, for the report.
func (f Fault) About() string {
	return map[Fault]string{
		FaultNone:         "nothing goes wrong",
		FaultBrokerOutage: fmt.Sprintf("every connection to name server and broker is reset, and new ones are, for %v", faultLasts),
		FaultDBRestart:    fmt.Sprintf("every connection to the database is reset, and new ones are, for %v: what the clients of a restarting server see", faultLasts),
		FaultKill:         fmt.Sprintf("the service (API, relay, consumer) is ended %d times in %v by kill -9, and started again at once", killTimes, faultLasts),
		FaultSlowBroker:   fmt.Sprintf("everything that passes between service and broker is %v late each way, for %v", slowBy, faultLasts),
		FaultAnswerLoss:   fmt.Sprintf("the order database commits, but the answer to every %drd COMMIT is lost, for %v", loseEvery, faultLasts),
	}[f]
}

// ParseFaults reads a list separated by commas; "all" is every one.
func ParseFaults(list string) ([]Fault, error) {
	if strings.TrimSpace(list) == "all" {
		return Faults(), nil
	}
	var faults []Fault
	for name := range strings.SplitSeq(list, ",") {
		f := Fault(strings.TrimSpace(name))
		if !slices.Contains(Faults(), f) {
			return nil, fmt.Errorf("fault %q: there are %v, and all", f, Faults())
		}
		if !slices.Contains(faults, f) {
			faults = append(faults, f)
		}
	}
	return faults, nil
}
