package rig

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/remoting"
)

// Whatever topics and groups the configuration gets, a site has its own in their place.
func TestNothingConfiguredIsUsed(t *testing.T) {
	t.Parallel()
	cfg, err := configs.Load("", nil)
	require.NoError(t, err)
	e := New(Options{Config: cfg, Dir: t.TempDir()})
	site, n, err := e.siteConfig(compare.Strategy{Settings: map[string]string{"HALFBOX_OUTBOX_CLAIM": "conditional-update"}}, "own", "/data")
	require.NoError(t, err)
	require.Equal(t, "conditional-update", site.Outbox.Claim)
	require.NotEmpty(t, n.topics)
	require.NotEmpty(t, n.groups)
	configured := map[string]string{}
	walk(reflect.ValueOf(&cfg).Elem(), func(key string, f reflect.Value) {
		if strings.HasSuffix(key, "topic") || strings.HasSuffix(key, "group") {
			configured[key+f.String()] = f.String()
		}
	})
	require.Len(t, append(n.topics, n.groups...), len(configured))
	seen := map[string]bool{}
	walk(reflect.ValueOf(&site).Elem(), func(key string, f reflect.Value) {
		for _, name := range configured {
			require.NotEqual(t, name, f.String(), key)
		}
		if strings.HasSuffix(key, "topic") || strings.HasSuffix(key, "group") {
			require.True(t, strings.HasPrefix(f.String(), "own_"), f.String())
			require.False(t, seen[f.String()], "%s is there twice", f.String())
			seen[f.String()] = true
		}
	})
	require.NotEqual(t, cfg.HTTP.Listen, site.HTTP.Listen)
}

func TestConfigIsHandedOverWithItsSecrets(t *testing.T) {
	t.Parallel()
	cfg, err := configs.Load("", nil)
	require.NoError(t, err)
	cfg.Database.OrderDSN = "user:secret@tcp(h:1)/s"
	text, err := encodeConfig(cfg)
	require.NoError(t, err)
	got, err := decodeConfig(text)
	require.NoError(t, err)
	require.Equal(t, "user:secret@tcp(h:1)/s", string(got.Database.OrderDSN))
	require.Equal(t, cfg.Outbox, got.Outbox)
	_, err = decodeConfig("nonsense")
	require.Error(t, err)
}

// owned makes the folder that a run leaves.
func owned(t *testing.T, temp, name string, o owner) string {
	t.Helper()
	dir := filepath.Join(temp, FolderPrefix+name)
	require.NoError(t, os.Mkdir(dir, 0o700))
	text, err := json.Marshal(o)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, ownerFile), text, 0o600))
	return dir
}

// deadPID is the number of a process that has ended.
func deadPID(t *testing.T) int {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-test.run", "^$")
	require.NoError(t, cmd.Run())
	return cmd.Process.Pid
}

// Only what runs of this machine have left whose process is gone is removed.
func TestFoldersOfDeadRunsAreRemoved(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	host, err := os.Hostname()
	require.NoError(t, err)
	dead := deadPID(t)
	gone := owned(t, temp, "gone", owner{Run: Prefix + "0000000a", Host: host, PID: dead})
	kept := []string{
		owned(t, temp, "alive", owner{Run: Prefix + "0000000b", Host: host, PID: os.Getpid()}),
		owned(t, temp, "elsewhere", owner{Run: Prefix + "0000000c", Host: host + "x", PID: dead}),
		owned(t, temp, "other-engines", owner{Run: Prefix + "0000000d", Host: host, PID: dead, MySQL: []string{"h:1", "h:1"}}),
		owned(t, temp, "no-run", owner{Run: "mysql", Host: host, PID: dead}),
	}
	unknown := filepath.Join(temp, FolderPrefix+"unknown")
	require.NoError(t, os.Mkdir(unknown, 0o700))
	e := New(Options{Dir: filepath.Join(temp, FolderPrefix+"own")})
	require.NoError(t, os.Mkdir(e.Dir, 0o700))
	require.NoError(t, e.Claim())
	removed, err := e.SweepDead(t.Context(), temp)
	require.NoError(t, err)
	require.Equal(t, []string{Prefix + "0000000a"}, removed)
	require.NoDirExists(t, gone)
	for _, dir := range append(kept, unknown, e.Dir) {
		require.DirExists(t, dir)
	}
}

// A run that was killed has left schemas and topics: the next one removes them, and not those of others.
func TestLeftoversOfDeadRunsAreRemoved(t *testing.T) {
	dsn, servers := enginetest.MySQL(t), enginetest.RocketMQ(t)
	cfg, err := configs.Load("", nil)
	require.NoError(t, err)
	cfg.Database.Driver = "mysql"
	cfg.Database.OrderDSN, cfg.Database.PointsDSN = configs.Secret(dsn), configs.Secret(dsn)
	cfg.RocketMQ.NameServers = servers
	killed, other, next := New(Options{Config: cfg}), New(Options{Config: cfg}), New(Options{Config: cfg})
	connector, err := next.serverOf(cfg.Database.OrderDSN)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	for _, e := range []*Engines{killed, other} {
		for _, name := range []string{"_1_order", "_1_points"} {
			_, err := db.ExecContext(t.Context(), "CREATE DATABASE "+e.run+name)
			require.NoError(t, err)
		}
		require.NoError(t, remoting.EnsureTopic(t.Context(), servers[0], e.run+"_1_topic", 1, next.credentials()))
	}
	t.Cleanup(func() {
		require.NoError(t, next.dropSchemas(context.Background(), cfg.Database.OrderDSN, other.run))
		require.NoError(t, next.sweep(context.Background(), other.run))
	})
	temp := t.TempDir()
	o, err := killed.owner()
	require.NoError(t, err)
	o.PID = deadPID(t)
	dir := owned(t, temp, "killed", o)
	removed, err := next.SweepDead(t.Context(), temp)
	require.NoError(t, err)
	require.Equal(t, []string{killed.run}, removed)
	require.NoDirExists(t, dir)
	for e, want := range map[*Engines]int{killed: 0, other: 2} {
		names, err := schemasOf(t.Context(), db, e.run)
		require.NoError(t, err)
		require.Len(t, names, want)
		topics, err := next.left(t.Context(), e.run)
		require.NoError(t, err)
		require.Len(t, topics, want/2)
	}
}
