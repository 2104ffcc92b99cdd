package compare

import (
	"context"
	"time"

	"github.com/halfbox/halfbox/internal/database"
)

// Engines make places to run in.
type Engines interface {
	// Name is what the report calls the set, for example "embedded".
	Name() string
	// Conditions describe the machine, the engines and their settings, for the report.
	Conditions(ctx context.Context) []Condition
	// MySQL tells whether the databases are MySQL.
	MySQL() bool
	// Lacks is why a fault cannot be made on these engines; empty when it can.
	Lacks(f Fault) string
	// InDoubt is the longest that an event can be open at the broker, see Strategy.InDoubt.
	InDoubt() time.Duration
	// Open makes a place of its own for one strategy, in which a fault can be made, and waits until its service is ready.
	// Whatever it made is gone when it fails.
	Open(ctx context.Context, s Strategy, f Fault) (Site, error)
}

// Condition is one line of the conditions of a measurement.
type Condition struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Site is a place of its own for one strategy: schemas, topic, groups, and the service as a process.
type Site interface {
	// URL is where the service's API is.
	URL() string
	// Counters are what was used since the service began.
	Counters(ctx context.Context) (Counters, error)
	// Order and Points are the databases, to be judged.
	Order() *database.DB
	Points() *database.DB
	// Records is the path of the file that the service's Recorder writes.
	Records() string
	// Kill ends the service at once, as kill -9 does. Restart starts it again at the same address and waits until it
	// is ready.
	Kill() error
	Restart(ctx context.Context) error
	// Broker and Database are the wires to them; Database is nil where there is none.
	Broker() Wire
	Database() Wire
	// LoseCommits loses the answer to every n-th COMMIT in the order database; 0 loses none.
	LoseCommits(ctx context.Context, n int) error
	// Close stops the service and removes everything that was made. It is bounded by itself and does its work also
	// when ctx has ended.
	Close(ctx context.Context) error
}

// Wire is a connection that faults can be made on.
type Wire interface {
	Cut()
	Delay(by time.Duration)
	Pass()
}

// Counters are sums since a service began.
type Counters struct {
	// CPUSeconds is user and system time of the service's process.
	CPUSeconds float64 `json:"cpu_seconds"`
	// OrderSQL and PointsSQL count statements, BEGIN, COMMIT and ROLLBACK included.
	OrderSQL  int64 `json:"order_sql"`
	PointsSQL int64 `json:"points_sql"`
	// BrokerSends are messages given to the broker (half messages too), BrokerEnds the decisions about half messages,
	// BrokerRequests the requests that carried both.
	BrokerSends    int64 `json:"broker_sends"`
	BrokerEnds     int64 `json:"broker_ends"`
	BrokerRequests int64 `json:"broker_requests"`
}

func (c Counters) minus(o Counters) Counters {
	return Counters{
		CPUSeconds: c.CPUSeconds - o.CPUSeconds, OrderSQL: c.OrderSQL - o.OrderSQL, PointsSQL: c.PointsSQL - o.PointsSQL,
		BrokerSends: c.BrokerSends - o.BrokerSends, BrokerEnds: c.BrokerEnds - o.BrokerEnds, BrokerRequests: c.BrokerRequests - o.BrokerRequests,
	}
}
