package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/halfbox/halfbox/broker"
	"github.com/halfbox/halfbox/checkback"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/faults"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/outbox"
)

// StopTimeout is how long the parts may take to finish when the program is told to stop, which must end within 10 s:
// some parts need a moment more for what must not be cut short.
const StopTimeout = 7 * time.Second

// Options make an App.
type Options struct {
	Config configs.Config
	// Roles is what this process does; empty means every role.
	Roles []Role
	// Logger defaults to a no-op.
	Logger *zap.Logger
	// Faults are the armed crash points, usually none.
	Faults faults.Set
	// Instruments let a measurement look at the service from inside, usually none.
	Instruments Instruments
}

// Role is one part of the service that can run in a process of its own.
type Role string

// The roles.
const (
	RoleAPI    Role = "api"    // the order API, its transactional producer and its check-backs
	RoleRelay  Role = "relay"  // the outbox relay and the rescue of half messages
	RolePoints Role = "points" // the points consumer
)

// Roles lists every role.
func Roles() []Role { return []Role{RoleAPI, RoleRelay, RolePoints} }

// ParseRoles reads a comma-separated list.
func ParseRoles(list string) ([]Role, error) {
	var roles []Role
	for name := range strings.SplitSeq(list, ",") {
		role := Role(strings.TrimSpace(name))
		if !slices.Contains(Roles(), role) {
			return nil, fmt.Errorf("role %q: there are %v", role, Roles())
		}
		roles = append(roles, role)
	}
	return roles, nil
}

// SetupError says why the application cannot start as it is configured, and what to do about it.
type SetupError struct {
	Problem error
	Remedy  string
}

func (e *SetupError) Error() string { return fmt.Sprintf("%v: %s", e.Problem, e.Remedy) }

// Unwrap gives the problem.
func (e *SetupError) Unwrap() error { return e.Problem }

// App is the wired service.
type App struct {
	lifecycle
	cfg    configs.Config
	roles  []Role
	log    *zap.Logger
	reg    *prometheus.Registry
	faults faults.Set
	inside Instruments

	broker      *broker.Broker // nil when a cluster is configured
	nameServers []string
	orderDB     *database.DB
	pointsDB    *database.DB
	relay       *outbox.Relay      // nil without that role
	relayDB     *database.DB       // the order database by the relay's own pool
	writer      *outbox.Writer     // nil until openWriter
	checker     *checkback.Checker // nil until openChecker
	checks      []httpapi.Check

	addrs    Addresses
	failed   chan error // a listener died
	stopOnce sync.Once
	stopErr  error
}

// Addresses are where the application listens; empty for what it does not run.
type Addresses struct {
	HTTP, Admin, Broker string
}

// New opens and binds everything the roles need. What it opened is closed again when it fails.
func New(o Options) (_ *App, err error) {
	if err := o.Config.Validate(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	a := &App{cfg: o.Config, roles: o.Roles, log: o.Logger, faults: o.Faults, inside: o.Instruments, reg: prometheus.NewRegistry(), failed: make(chan error, 2)}
	if len(a.roles) == 0 {
		a.roles = Roles()
	}
	if a.log == nil {
		a.log = zap.NewNop()
	}
	a.reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() {
		if err != nil {
			err = errors.Join(err, a.stop(context.Background()))
		}
	}()
	// The order is that of starting; stopping goes the other way.
	for _, open := range []func() error{
		a.openData, a.openBroker, a.openTopics, a.openReach, a.openDatabases, a.openPoints, a.openRelay, a.openRescue, a.openAPI,
		a.openListeners,
	} {
		if err := open(); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *App) has(r Role) bool { return slices.Contains(a.roles, r) }

// Start starts everything in the background. When it fails, call Stop.
func (a *App) Start() error { return a.start() }

// Addresses returns where the application listens.
func (a *App) Addresses() Addresses { return a.addrs }

// Ready reports nil when every part can work that this process cannot do without, else what is missing.
func (a *App) Ready(ctx context.Context) error {
	var missing []error
	for _, c := range a.checks {
		if err := c.Ready(ctx); err != nil && !httpapi.IsDegraded(err) {
			missing = append(missing, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	return errors.Join(missing...)
}

// AwaitReady waits until Ready reports nil.
func (a *App) AwaitReady(ctx context.Context) error {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := a.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// Failed gets an error when a part that cannot be restarted has died.
func (a *App) Failed() <-chan error { return a.failed }

// Stop stops everything and waits for it. ctx bounds the wait for work in flight. It may be called more than once.
func (a *App) Stop(ctx context.Context) error {
	a.stopOnce.Do(func() { a.stopErr = a.stop(ctx) })
	return a.stopErr
}
