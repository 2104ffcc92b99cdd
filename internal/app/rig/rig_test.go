package rig_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/app/rig"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/httpapi"
	"github.com/halfbox/halfbox/internal/rocketmq"
	"github.com/halfbox/halfbox/order"
	"github.com/halfbox/halfbox/outbox"
)

// childArgument makes this test binary the service that a comparison starts.
const childArgument = "service-of-a-comparison"

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == childArgument {
		os.Exit(child(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"))
}

func child(name, records string) int {
	httpapi.ReleaseMode()
	err := rocketmq.Configure(zap.NewNop())
	var chosen []compare.Strategy
	if err == nil {
		chosen, err = compare.Choose(strategies(), name)
	}
	if err == nil {
		err = rig.Serve(chosen[0], records, os.Stdin, os.Stdout, zap.NewNop())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// beat is what the strategies of these tests take, so that the machine's own noise is small against it.
const beat = 150 * time.Millisecond

// strategies are those of the program and some whose faults are known.
func strategies() []compare.Strategy {
	paced := func(p compare.Parts, by time.Duration, skip int64) order.Publisher {
		return &known{next: mustWriter(p), parts: p, by: by, skip: skip}
	}
	return append(compare.Strategies(),
		compare.Strategy{Name: "steady", Delivery: "steady", About: "takes its time", Open: func(p compare.Parts) order.Publisher { return paced(p, beat, 0) }},
		compare.Strategy{Name: "twin", Delivery: "twin", About: "the same", Open: func(p compare.Parts) order.Publisher { return paced(p, beat, 0) }},
		compare.Strategy{Name: "slow", Delivery: "slow", About: "30 % slower", Open: func(p compare.Parts) order.Publisher { return paced(p, beat*13/10, 0) }},
		compare.Strategy{Name: "lossy", Delivery: "lossy", About: "loses every hundredth", Open: func(p compare.Parts) order.Publisher { return paced(p, 0, 100) }},
	)
}

func mustWriter(p compare.Parts) *outbox.Writer {
	w, err := outbox.NewWriter(outbox.WriterConfig{DB: p.DB, Sink: "rocketmq", Destination: p.Topic})
	if err != nil {
		panic(err)
	}
	return w
}

// known waits by, and commits every skip-th order without its event.
type known struct {
	next  order.Publisher
	parts compare.Parts
	by    time.Duration
	skip  int64
	n     atomic.Int64
}

func (k *known) PublishInTx(ctx context.Context, ev halfbox.Event, local func(tx *gorm.DB, at halfbox.Attempt) error) (halfbox.Receipt, error) {
	<-time.After(k.by)
	if k.skip == 0 || k.n.Add(1)%k.skip != 0 {
		return k.next.PublishInTx(ctx, ev, local)
	}
	at, err := halfbox.NewAttempt(halfbox.DeliveryOutbox)
	if err != nil {
		return halfbox.Receipt{}, err
	}
	return halfbox.Receipt{Attempt: at}, k.parts.DB.InTx(ctx, func(tx *gorm.DB) error { return local(tx, at) })
}

func engines(t *testing.T, change func(cfg *configs.Config)) *rig.Engines {
	t.Helper()
	cfg, err := configs.Load("", nil)
	require.NoError(t, err)
	cfg.Outbox.Lease, cfg.Outbox.ReclaimInterval = 3*time.Second, time.Second
	cfg.Outbox.SendTimeout = time.Second
	if change != nil {
		change(&cfg)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	return rig.New(rig.Options{Config: cfg, Command: []string{self, childArgument}, Dir: t.TempDir(), Name: "embedded"})
}

func run(t *testing.T, e *rig.Engines, names string, change func(c *compare.Config)) *compare.Report {
	t.Helper()
	chosen, err := compare.Choose(strategies(), names)
	require.NoError(t, err)
	c := compare.Config{
		Engines: e, Strategies: chosen, Faults: []compare.Fault{compare.FaultNone}, Orders: 40, Rounds: 5, Warmup: 5, Concurrency: 4, Seed: 1,
	}
	if change != nil {
		change(&c)
	}
	report, err := compare.Run(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, report.Partial)
	require.NoError(t, e.Sweep(t.Context()))
	return report
}

func metric(t *testing.T, r *compare.Report, key string) compare.Metric {
	t.Helper()
	for _, m := range r.Metrics {
		if m.Key == key {
			return m
		}
	}
	require.Fail(t, "no metric "+key)
	return compare.Metric{}
}

// One strategy is 30 % slower than another, which has a twin: the report must say the first and must not say the
// second. On a machine so busy that its noise is larger than the difference nothing can be said; then it is tried
// again.
func TestSlowerIsSeenAndTwinsAreNot(t *testing.T) {
	var report *compare.Report
	for range 8 {
		report = run(t, engines(t, nil), "steady,twin,slow", func(c *compare.Config) { c.Orders, c.Concurrency = 7, 1 })
		p50 := metric(t, report, "api_p50")
		require.NotContains(t, p50.Beats, "twin")
		require.NotContains(t, p50.Beats, "steady")
		require.NotEqual(t, "slow", p50.Best)
		if len(p50.Beats) == 1 {
			require.Equal(t, []string{"slow"}, p50.Beats)
			require.Len(t, p50.Ties, 1)
			return
		}
		t.Logf("too noisy to tell: %v %v %v", *p50.Values["steady"], *p50.Values["twin"], *p50.Values["slow"])
	}
	require.Fail(t, "a difference of 30 % was never seen")
}

// One event in a hundred is lost: the databases say so, whatever the callers were told.
func TestLossIsSeen(t *testing.T) {
	report := run(t, engines(t, nil), "lossy,outbox/conditional-update", func(c *compare.Config) { c.Orders, c.Rounds, c.Warmup = 150, 2, 0 })
	lossy, sound := report.Judged["lossy"], report.Judged["outbox/conditional-update"]
	require.Equal(t, lossy.Committed/100, lossy.Lost, "%+v", lossy)
	require.GreaterOrEqual(t, lossy.Lost, 3)
	require.Equal(t, compare.Judgement{Committed: 300, Deliveries: 300 + sound.Duplicates, Duplicates: sound.Duplicates}, sound)
	var said []string
	for _, f := range report.Findings {
		if f.Kind == "loss" {
			said = append(said, f.Strategy)
		}
	}
	require.Equal(t, []string{"lossy"}, said)
}

// The control loses by itself where COMMIT's answer is lost and where the broker is away; the strategies do not.
func TestNaiveLosesUnderFaults(t *testing.T) {
	report := run(t, engines(t, nil), "txmsg,outbox,naive", func(c *compare.Config) {
		c.Faults = []compare.Fault{compare.FaultAnswerLoss, compare.FaultBrokerOutage, compare.FaultDBRestart}
		c.FaultRate = 20
	})
	require.Len(t, report.Faults, 3)
	for _, f := range report.Faults[:2] {
		require.Len(t, f.Results, 3, "skip-locked needs MySQL")
		for _, res := range f.Results {
			require.NotNil(t, res.Judged, res.Strategy)
			require.Empty(t, res.Judged.Unsettled, res.Strategy)
			require.Zero(t, res.Judged.Wrong+res.Judged.Phantom+res.Judged.Unbalanced)
			if res.Strategy == compare.Naive {
				require.Positive(t, res.Judged.Lost, f.Fault)
			} else {
				require.Zero(t, res.Judged.Lost, "%s under %s", res.Strategy, f.Fault)
			}
			if f.Fault == compare.FaultAnswerLoss {
				require.Positive(t, res.Saw[compare.Unknown], res.Strategy)
			}
		}
	}
	require.Contains(t, report.Faults[2].NotRun, "SQLite has no server")
	require.Contains(t, report.Strategies[1].NotRun, "SKIP LOCKED")
}

// A kill in the middle: the service comes back at its address, and nothing is lost.
func TestKilledServiceComesBack(t *testing.T) {
	report := run(t, engines(t, nil), "txmsg,outbox/conditional-update", func(c *compare.Config) {
		c.Faults, c.FaultRate = []compare.Fault{compare.FaultKill}, 100 // some calls meet a service that is back in a moment
	})
	for _, res := range report.Faults[0].Results {
		require.Zero(t, res.Judged.Lost, res.Strategy)
		require.Positive(t, res.Saw[compare.NoAnswer], res.Strategy)
		require.GreaterOrEqual(t, res.RecoverySeconds, 0.0, "it was not seen to be back")
	}
}

// An interruption keeps what was measured, says so, and removes what was made.
func TestInterruptedRunKeepsWhatItHas(t *testing.T) {
	e := engines(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	chosen, err := compare.Choose(strategies(), "naive")
	require.NoError(t, err)
	report, err := compare.Run(ctx, compare.Config{
		Engines: e, Strategies: chosen, Faults: []compare.Fault{compare.FaultNone}, Orders: 20, Rounds: 50, Warmup: 1, Concurrency: 2,
		Progress: func(done, _ int, _ string) {
			if done == 3 {
				cancel()
			}
		},
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NotEmpty(t, report.Partial)
	require.Len(t, report.Rounds, 3)
	require.NotEmpty(t, report.Metrics)
	require.Empty(t, report.NotJudged)
	require.GreaterOrEqual(t, report.Judged["naive"].Committed, 61, "the rounds that are whole are judged, the warm-up with them")
	require.Zero(t, report.Judged["naive"].Lost)
	left, err := os.ReadDir(e.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
	paths, err := report.WriteFiles(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	require.Len(t, paths, 3)
	page, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	require.Contains(t, string(page), "did not come to its end")
	text, err := os.ReadFile(paths[1])
	require.NoError(t, err)
	var again compare.Report
	require.NoError(t, json.Unmarshal(text, &again))
	require.Len(t, again.Rounds[0].Samples.LatencyMS, 20)
}

// outageEngines call during in the outage of each site's broker.
type outageEngines struct {
	compare.Engines
	during func(s compare.Site)
}

func (e outageEngines) Open(ctx context.Context, s compare.Strategy, f compare.Fault) (compare.Site, error) {
	site, err := e.Engines.Open(ctx, s, f)
	return outageSite{site, e.during}, err
}

type outageSite struct {
	compare.Site
	during func(s compare.Site)
}

func (s outageSite) Broker() compare.Wire {
	return outageWire{s.Site.Broker(), func() { s.during(s.Site) }}
}

type outageWire struct {
	compare.Wire
	during func()
}

func (w outageWire) Cut() {
	w.Wire.Cut()
	w.during()
}

// An interruption in the middle of a fault keeps what the callers saw, says that nobody can judge it, and names the
// faults that the run did not come to.
func TestInterruptedFaultIsNotJudged(t *testing.T) {
	e := engines(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	chosen, err := compare.Choose(strategies(), "naive,txmsg")
	require.NoError(t, err)
	var cut atomic.Int32
	during := func(s compare.Site) {
		// However busy the machine is, some callers have their answers by then.
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for orders := 0; orders < 20; <-look.C {
			if err := s.Order().Read.Raw("SELECT COUNT(*) FROM t_order").Scan(&orders).Error; err != nil {
				t.Error(err)
				break
			}
		}
		if int(cut.Add(1)) == len(chosen) {
			cancel()
		}
	}
	report, err := compare.Run(ctx, compare.Config{
		Engines: outageEngines{e, during}, Strategies: chosen, Faults: []compare.Fault{compare.FaultBrokerOutage, compare.FaultKill},
		FaultRate: 50, Orders: 1, Rounds: 1, Warmup: 1, Concurrency: 1,
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, report.Faults, 2)
	require.Len(t, report.Faults[0].Results, 2)
	for _, res := range report.Faults[0].Results {
		require.Nil(t, res.Judged, res.Strategy)
		require.NotEmpty(t, res.NotJudged, res.Strategy)
		require.Positive(t, res.Saw[compare.Created], res.Strategy)
		require.Zero(t, res.Saw[compare.NoAnswer], "those who hung up saw nothing")
		require.Equal(t, -1.0, res.RecoverySeconds)
		require.NotEmpty(t, res.Samples.LatencyMS)
	}
	require.Contains(t, report.Faults[1].NotRun, "the run ended before")
	left, err := os.ReadDir(e.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = report.WriteFiles(t.TempDir())
	require.NoError(t, err)
}

// On MySQL and RocketMQ: both claim ways run, the database's wire can be cut, and nothing stays behind.
func TestRealEngines(t *testing.T) {
	dsn, servers := enginetest.MySQL(t), enginetest.RocketMQ(t)
	e := engines(t, func(cfg *configs.Config) {
		cfg.Database.Driver = "mysql"
		cfg.Database.OrderDSN, cfg.Database.PointsDSN = configs.Secret(dsn), configs.Secret(dsn)
		cfg.RocketMQ.NameServers = servers
		// A pause of the machine sends no order another way, and ends no transaction.
		cfg.Txmsg.HalfTimeout, cfg.Txmsg.LocalTimeout = 9*time.Second, 9*time.Second
	})
	report := run(t, e, "txmsg,outbox,naive", func(c *compare.Config) {
		c.Faults, c.Rounds, c.FaultRate = []compare.Fault{compare.FaultNone, compare.FaultDBRestart}, 1, 20
	})
	for _, name := range []string{"txmsg", "outbox/skip-locked", "outbox/conditional-update", "naive"} {
		require.Equal(t, 45, report.Judged[name].Committed, name)
		require.Zero(t, report.Judged[name].Lost, name)
	}
	require.Equal(t, 2.0, metric(t, report, "messages_per_order").Values["txmsg"].Median)
	for _, res := range report.Faults[0].Results {
		if res.Strategy != compare.Naive {
			require.Zero(t, res.Judged.Lost, res.Strategy)
		}
		require.Positive(t, res.Saw[compare.Unavailable]+res.Saw[compare.Unknown]+res.Saw[compare.NoAnswer]+res.Saw[compare.Other], "the cut was felt")
	}
	require.NoError(t, e.Sweep(t.Context()), "topics and groups")
	require.Empty(t, schemas(t, dsn, e.Run()), "schemas")
}

// schemas lists what a run has left on a server.
func schemas(t *testing.T, dsn, run string) (left []string) {
	t.Helper()
	db, err := database.OpenMySQL(dsn, database.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.Read.Raw("SELECT schema_name FROM information_schema.schemata WHERE LEFT(schema_name, ?) = ?", len(run), run).Scan(&left).Error)
	return left
}
