package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/halfbox/halfbox"
	"github.com/halfbox/halfbox/internal/cli"
	"github.com/halfbox/halfbox/internal/database"
	"github.com/halfbox/halfbox/outbox"
)

func TestMain(m *testing.M) {
	// A cache of the RocketMQ client, made when its package is loaded.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"))
}

func run(args ...string) (code int, stdout, stderr string) { return runIn(nil, args...) }

func runIn(environ []string, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = cli.Run(args, cli.Env{Stdout: &out, Stderr: &err, Environ: environ})
	return code, out.String(), err.String()
}

func TestHelpTeaches(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"serve", "--help"}, {"broker", "--help"}, {"outbox"}, {"outbox", "list", "--help"}, {"compare", "--help"}} {
		code, out, _ := run(args...)
		require.Zero(t, code, args)
		require.Contains(t, out, "halfbox", args)
		require.NotContains(t, out, "--fault ", "crash points are hidden")
	}
	code, out, _ := run("version")
	require.Zero(t, code)
	require.Contains(t, out, "halfbox")
}

func TestUsageErrors(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("http:\n  lisen: x\n"), 0o600))
	for want, args := range map[string][]string{
		"unknown command":            {"srv"},
		"unknown flag":               {"serve", "--nonsense"},
		`role "baker"`:               {"serve", "--roles", "baker"},
		"http.listen":                {"serve", "--http", "nowhere"},
		"HALFBOX_ALLOW_FAULTS":       {"serve", "--fault", "txmsg.after-end=kill@1"},
		`line 2: unknown key`:        {"serve", "--config", bad},
		"no such file":               {"broker", "--config", "/nowhere.yaml"},
		"--status":                   {"outbox", "list", "--status", "LOST"},
		"--limit":                    {"outbox", "list", "--limit", "0"},
		"--output":                   {"outbox", "stats", "-o", "xml"},
		"which dead letters":         {"outbox", "redrive", "--reason", "x"},
		"contradict":                 {"outbox", "redrive", "--all", "--sink", "main", "--reason", "x"},
		"--reason is required":       {"outbox", "redrive", "--all"},
		"--limit -1":                 {"outbox", "redrive", "--all", "--reason", "x", "--limit", "-1"},
		"--rate":                     {"outbox", "redrive", "--all", "--reason", "x", "--rate", "-1"},
		"--older-than":               {"outbox", "purge", "--older-than", "-1h", "--reason", "x", "--yes"},
		"confirm with --yes":         {"outbox", "purge", "--all", "--reason", "x"},
		`strategy "kafka"`:           {"compare", "--strategies", "kafka"},
		`fault "fire"`:               {"compare", "--faults", "fire"},
		`scripts/engines up`:         {"compare", "--engines", "real"},
		`--engines "nowhere.yaml"`:   {"compare", "--engines", "nowhere.yaml"},
		"rounds must be at least 1":  {"compare", "--rounds", "0"},
		"rate concurrency":           {"compare", "--rate", "5", "--concurrency", "3"},
		"accepts 1 arg":              {"outbox", "show"},
		"there is no order databas":  {"outbox", "stats", "--data", t.TempDir()},
		"there is no order database": {"doctor", "--data", t.TempDir()},
		"--line":                     {"migrate", "down", "--line", "all"},
		"--yes":                      {"migrate", "down", "--line", "outbox"},
	} {
		code, out, err := run(args...)
		require.Equal(t, 2, code, args)
		require.Contains(t, err, want, args)
		require.Contains(t, err, "halfbox: ")
		require.Empty(t, out)
	}
}

// outboxFolder is a data folder whose outbox holds two records.
func outboxFolder(t *testing.T) (dir string, ids []string) {
	t.Helper()
	dir = t.TempDir()
	db, err := database.OpenSQLite(filepath.Join(dir, "order.db"), database.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.Migrate(context.Background(), outbox.Migrations()))
	w, err := outbox.NewWriter(outbox.WriterConfig{DB: db, Sink: "main", Destination: "T"})
	require.NoError(t, err)
	for _, no := range []string{"A1", "A2"} {
		receipt, err := w.PublishInTx(t.Context(), halfbox.Event{
			Type: "order.created", Source: "/x", Subject: no, Time: time.Now(), DataSchema: "urn:x:1", AggregateVersion: 1,
			PartitionKey: no, Data: json.RawMessage(`{"order_no":"` + no + `"}`),
		}, func(*gorm.DB, halfbox.Attempt) error { return nil })
		require.NoError(t, err)
		ids = append(ids, receipt.MsgID)
	}
	return dir, ids
}

func TestOutboxCommands(t *testing.T) {
	dir, ids := outboxFolder(t)

	code, out, _ := run("outbox", "stats", "--data", dir)
	require.Zero(t, code)
	require.Regexp(t, `SINK +WAIT +SENDING +SUCCESS +FAIL +OLDEST UNSENT\nmain +2 +0 +0 +0 +\S+\n`, out)

	code, out, _ = run("outbox", "list", "--data", dir, "--biz-no", "A2", "--status", "WAIT")
	require.Zero(t, code)
	require.Contains(t, out, ids[1])
	require.NotContains(t, out, ids[0])

	code, out, _ = run("outbox", "list", "--data", dir, "-o", "json", "--status", "FAIL")
	require.Zero(t, code)
	require.JSONEq(t, `{"events":[]}`, out)

	code, out, _ = run("outbox", "list", "--data", dir, "--limit", "1", "-o", "json")
	require.Zero(t, code)
	var page struct {
		Events []map[string]any
		Next   string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &page))
	require.Len(t, page.Events, 1)
	code, out, _ = run("outbox", "list", "--data", dir, "--limit", "1", "--after", page.Next)
	require.Zero(t, code)
	require.NotContains(t, out, page.Events[0]["msg_id"])

	code, out, _ = run("outbox", "show", ids[0], "--data", dir, "-o", "json")
	require.Zero(t, code)
	var shown []map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	require.Equal(t, "A1", shown[0]["biz_no"])
	require.Equal(t, ids[0], shown[0]["payload"].(map[string]any)["id"])

	code, out, _ = run("outbox", "show", ids[0], "--data", dir)
	require.Zero(t, code)
	require.Regexp(t, `(?m)^biz_no +A1$`, out)
	require.Regexp(t, `(?m)^payload +\{`, out)

	db, err := database.OpenSQLite(filepath.Join(dir, "order.db"), database.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Write.Exec("UPDATE t_event_record SET status = 'FAIL', last_error = 'refused: no such topic' WHERE biz_no = 'A1'").Error)
	require.NoError(t, db.Close())
	code, out, _ = run("outbox", "blocked", "--data", dir, "--sink", "main")
	require.Zero(t, code, out)
	require.Contains(t, out, "DEAD VERSION")
	require.Contains(t, out, "refused: no such topic")
	code, out, _ = run("outbox", "blocked", "--data", dir, "-o", "json")
	require.Zero(t, code, out)
	require.JSONEq(t, "[]", out)

	code, _, stderr := run("outbox", "show", "nobody", "--data", dir)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "no event record has msg_id nobody")
}

func TestMigrateAndDoctor(t *testing.T) {
	dir := t.TempDir()
	code, out, err := run("migrate", "up", "--data", dir)
	require.Zero(t, code, err)
	require.Equal(t, "order: at version 1\noutbox: at version 2\ncheckback: at version 1\ntxlog: at version 1\npoints: at version 1\n", out)
	code, _, err = run("migrate", "up", "--data", dir)
	require.Zero(t, code, err)

	code, out, _ = run("doctor", "--data", dir)
	require.Zero(t, code, out)
	require.Contains(t, out, "queries have theirs")
	require.NotContains(t, out, "->")

	code, out, _ = run("migrate", "down", "--data", dir, "--line", "outbox", "--yes")
	require.Zero(t, code)
	require.Contains(t, out, "outbox: undone 2")
	code, out, err = run("migrate", "status", "--data", dir)
	require.Equal(t, 1, code)
	require.Contains(t, err, "halfbox migrate up")
	require.Regexp(t, `outbox +2 +\S+ +pending`, out)
	code, out, _ = run("doctor", "--data", dir, "-o", "json")
	require.Equal(t, 1, code)
	var findings []map[string]string
	require.NoError(t, json.Unmarshal([]byte(out), &findings))
	require.Contains(t, findings, map[string]string{
		"check": "order database: tables", "verdict": "bad", "remedy": "halfbox migrate up",
		"detail": "migration 0002_audit_log.sql of outbox is not applied: run halfbox migrate up",
	})
	code, _, err = run("migrate", "down", "--data", dir, "--line", "outbox", "--yes")
	require.Zero(t, code, err)
	code, _, err = run("migrate", "down", "--data", dir, "--line", "outbox", "--yes")
	require.Equal(t, 1, code)
	require.Contains(t, err, "no migration of outbox is applied")
}

// What the doctor cannot look at is a finding with its remedy, and the rest is looked at all the same.
func TestDoctorOfWhatCannotBeUsed(t *testing.T) {
	code, out, err := runIn([]string{
		"HALFBOX_DATABASE_DRIVER=mysql", "HALFBOX_ROCKETMQ_NAME_SERVERS=127.0.0.1:1",
		"HALFBOX_DATABASE_ORDER_DSN=app:hunter2@tcp(127.0.0.1:1)/orders?parseTime=false",
		"HALFBOX_DATABASE_POINTS_DSN=app:hunter2@tcp(127.0.0.1:1)/points",
	}, "doctor", "--data", t.TempDir())
	require.Equal(t, 1, code, out)
	require.NotContains(t, out+err, "hunter2")
	for _, want := range []string{
		`bad +order database +database DSN: parseTime=false`, `-> correct database.order_dsn`,
		`bad +points database +.*connection refused`, `-> start the server, or correct its address`,
		`bad +name server 127.0.0.1:1 +.*connection refused`, `-> start it, or correct rocketmq.name_servers`,
	} {
		require.Regexp(t, want, out)
	}
}
