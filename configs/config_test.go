package configs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/halfbox/halfbox/configs"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "halfbox.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDefaultsAreValid(t *testing.T) {
	c, err := configs.Load("", nil)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	require.Equal(t, ":8080", c.HTTP.Listen)
	require.Equal(t, 6*time.Second, c.Broker.TransactionTimeout)
	require.True(t, c.RocketMQ.Embedded())
}

func TestFileThenEnvironment(t *testing.T) {
	path := write(t, "http:\n  listen: 127.0.0.1:1\ncheckback:\n  grace: 20s\nrocketmq:\n  name_servers: [a:1]\n")
	c, err := configs.Load(path, []string{
		"HALFBOX_HTTP_LISTEN=127.0.0.1:2", "HALFBOX_ROCKETMQ_NAME_SERVERS=b:1,c:2", "HALFBOX_DATABASE_ORDER_DSN=u:pw@/o", "HALFBOX_ALLOW_FAULTS=1", "PATH=/bin",
	})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:2", c.HTTP.Listen)
	require.Equal(t, 20*time.Second, c.Checkback.Grace)
	require.Equal(t, []string{"b:1", "c:2"}, c.RocketMQ.NameServers)
	require.Equal(t, "u:pw@/o", string(c.Database.OrderDSN))
	require.Equal(t, 256, c.HTTP.MaxInFlight, "what the file leaves out keeps its default")
}

func TestMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"http:\n  lisen: x\n":                   `line 2: unknown key "lisen"`,
		"htttp: {}\n":                           `line 1: unknown key "htttp"`,
		"broker:\n  check_max: many\n":          `line 2: "many" is not a valid int`,
		"checkback:\n  grace: 10 parsecs\n":     `line 2`,
		"data: a\n---\ndata: b\n":               "more than one document",
		"http: [":                               "line 1",
		"txmsg:\n  fallback: {a: b}\n":          "line 2",
		"admin:\n  token: secret\n  token: x\n": "line 3",
	} {
		_, err := configs.Load(write(t, text), nil)
		require.ErrorContains(t, err, want, "%q", text)
		require.NotContains(t, err.Error(), "configs.", "no Go type names")
	}
	_, err := configs.Load("/nowhere/halfbox.yaml", nil)
	require.ErrorContains(t, err, "/nowhere/halfbox.yaml")
	_, err = configs.Load("", []string{"HALFBOX_HTP_LISTEN=:1"})
	require.ErrorContains(t, err, "HALFBOX_HTP_LISTEN")
	_, err = configs.Load("", []string{"HALFBOX_CHECKBACK_GRACE=soon"})
	require.Error(t, err)
	_, err = configs.Load(write(t, ""), nil)
	require.NoError(t, err, "an empty file changes nothing")
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*configs.Config)
		want   string
	}{
		"no folder":            {func(c *configs.Config) { c.Data = "" }, "data"},
		"address":              {func(c *configs.Config) { c.HTTP.Listen = "8080" }, "http.listen"},
		"driver":               {func(c *configs.Config) { c.Database.Driver = "oracle" }, "database.driver"},
		"mysql without dsn":    {func(c *configs.Config) { c.Database.Driver = "mysql" }, "database.order_dsn"},
		"groups":               {func(c *configs.Config) { c.RocketMQ.RelayGroup = c.RocketMQ.TransactionGroup }, "swallow check-backs"},
		"slow local":           {func(c *configs.Config) { c.Txmsg.LocalTimeout = 6 * time.Second }, "txmsg.local_timeout (6s) must be below broker.transaction_timeout (6s)"},
		"short grace":          {func(c *configs.Config) { c.Checkback.Grace = 5 * time.Second }, "must be below checkback.grace"},
		"grace beyond checks":  {func(c *configs.Config) { c.Checkback.Grace = 450 * time.Second }, "check_max x check_interval"},
		"send beyond lease":    {func(c *configs.Config) { c.Outbox.SendTimeout = c.Outbox.Lease }, "outbox.send_timeout"},
		"zero":                 {func(c *configs.Config) { c.Outbox.PollMax = 0 }, "outbox.poll_max"},
		"fallback":             {func(c *configs.Config) { c.Txmsg.Fallback = "maybe" }, "txmsg.fallback"},
		"delivery":             {func(c *configs.Config) { c.Order.Delivery = "pigeon" }, "order.delivery"},
		"tls":                  {func(c *configs.Config) { c.Database.TLS = "maybe" }, "database.tls"},
		"tls without ca":       {func(c *configs.Config) { c.Database.TLS = "verify-ca" }, "database.tls_ca_file"},
		"claim":                {func(c *configs.Config) { c.Outbox.Claim = "first" }, "outbox.claim"},
		"claim without locks":  {func(c *configs.Config) { c.Outbox.Claim = "skip-locked" }, "needs database.driver mysql"},
		"retention":            {func(c *configs.Config) { c.Outbox.Retention = -1 }, "outbox.retention"},
		"backlog policy":       {func(c *configs.Config) { c.Outbox.BacklogPolicy = "shout" }, "outbox.backlog_policy"},
		"backlog limit":        {func(c *configs.Config) { c.Outbox.BacklogLimit = 0 }, "outbox.backlog_limit"},
		"max payload":          {func(c *configs.Config) { c.Outbox.MaxPayload = 0 }, "outbox.max_payload"},
		"half a credential":    {func(c *configs.Config) { c.RocketMQ.AccessKey = "me" }, "set both or none"},
		"log level and format": {func(c *configs.Config) { c.Log.Level, c.Log.Format = "loud", "xml" }, "log.format"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := configs.Load("", nil)
			require.NoError(t, err)
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
}

func TestRealClusterTimesAreNotGuessed(t *testing.T) {
	c, err := configs.Load("", []string{"HALFBOX_ROCKETMQ_NAME_SERVERS=a:1", "HALFBOX_CHECKBACK_GRACE=5s"})
	require.NoError(t, err)
	require.NoError(t, c.Validate())
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	c, err := configs.Load("", []string{"HALFBOX_ADMIN_TOKEN=hunter2", "HALFBOX_DATABASE_ORDER_DSN=u:hunter2@/o"})
	require.NoError(t, err)
	y, err := yaml.Marshal(c)
	require.NoError(t, err)
	j, err := json.Marshal(c)
	require.NoError(t, err)
	for _, out := range []string{string(y), string(j), fmt.Sprintf("%v %+v %#v %s", c, c, c, c.Admin.Token)} {
		require.NotContains(t, out, "hunter2")
		require.Contains(t, out, "***")
	}
	require.Equal(t, "hunter2", string(c.Admin.Token))
}

func TestSecretsFromFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("hunter2\n"), 0o600))
	c, err := configs.Load("", []string{"HALFBOX_ADMIN_TOKEN_FILE=" + file, "HALFBOX_ROCKETMQ_SECRET_KEY_FILE=" + file, "HALFBOX_ROCKETMQ_ACCESS_KEY=me"})
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	require.Equal(t, "hunter2", string(c.Admin.Token))
	require.Equal(t, "hunter2", string(c.RocketMQ.SecretKey))
	_, err = configs.Load("", []string{"HALFBOX_ADMIN_TOKEN_FILE=" + file, "HALFBOX_ADMIN_TOKEN=x"})
	require.ErrorContains(t, err, "admin.token and admin.token_file are both set")
	_, err = configs.Load("", []string{"HALFBOX_DATABASE_ORDER_DSN_FILE=/nowhere"})
	require.ErrorContains(t, err, "database.order_dsn_file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = configs.Load("", []string{"HALFBOX_ADMIN_TOKEN_FILE=" + file})
	require.ErrorContains(t, err, "is empty")
}

func TestRealConfiguration(t *testing.T) {
	c, err := configs.Load("real.yaml", nil)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	require.Equal(t, "mysql", c.Database.Driver)
	require.False(t, c.RocketMQ.Embedded())
	require.Equal(t, "never", c.Database.Migrate)
}
