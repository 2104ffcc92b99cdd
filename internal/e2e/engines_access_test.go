package e2e

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/enginetest"
	"github.com/halfbox/halfbox/internal/remoting"
)

// A real broker with access control: with the right credentials everything works, with a wrong one it is said what is
// wrong and what to do, and the secret is never shown.
func TestEnginesAccessControl(t *testing.T) {
	t.Parallel()
	const user, secret, wrong = "halfbox-user", "right-s3cret", "wr0ng-s3cret"
	r := enginetest.OwnRocketMQWithUser(t, user, secret)
	s := newRealSite(t, enginetest.MySQL(t), enginetest.MySQL(t), r.NameServers())
	right := []string{"HALFBOX_ROCKETMQ_ACCESS_KEY=" + user, "HALFBOX_ROCKETMQ_SECRET_KEY=" + secret, "HALFBOX_LOG_LEVEL=debug"}
	p := s.serve(t, right)
	require.NotNil(t, p)
	requireReady(t, p.admin)
	wishes := []wish{
		{Key: "a", UserID: 1, Amount: 100, Delivery: "txmsg"},
		{Key: "b", UserID: 1, Amount: 200, Delivery: "outbox"},
	}
	for _, w := range wishes {
		require.Equal(t, w.Delivery, w.fulfil(t, p.api).Via)
	}
	s.requireSettled(t)
	code, text := s.doctor(t, right)
	require.Zero(t, code, text)
	require.NotContains(t, text+p.stderr(), secret)
	s.requireWhole(t, p, wishes)

	bad := []string{"HALFBOX_ROCKETMQ_ACCESS_KEY=" + user, "HALFBOX_ROCKETMQ_SECRET_KEY=" + wrong, "HALFBOX_LOG_LEVEL=debug"}
	code, text = s.doctor(t, bad)
	require.Equal(t, 1, code, text)
	require.Contains(t, text, "check rocketmq.access_key and secret_key")
	admin := freeAddr(t)
	q, _ := launch(t, append(append([]string{}, s.env...), bad...), "serve", "--data", s.data, "--http", "127.0.0.1:0", "--admin", admin)
	said := ""
	require.Eventually(t, func() bool {
		res, err := httpClient().Get("http://" + admin + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		_, checked := checks(t, "http://"+admin)
		said = checked["rocketmq"]
		return strings.Contains(said, "check rocketmq.access_key and secret_key")
	}, wait, 10*tick, "it is not said what is wrong: %v", lazy(func() string { return said }))
	require.NotContains(t, text+q.stderr()+said, wrong)
	require.Zero(t, q.stop(t))
}

// A user who is no administrator, with the permissions that docs/operations.md names, is enough for everything; with
// fewer it is said which one is missing.
func TestEnginesAuthorization(t *testing.T) {
	t.Parallel()
	admin := remoting.Credentials{AccessKey: "admin", SecretKey: "adm1n-s3cret"}
	user := remoting.Credentials{AccessKey: "halfbox", SecretKey: "us3r-s3cret"}
	less := remoting.Credentials{AccessKey: "less", SecretKey: "l3ss-s3cret"}
	r := enginetest.OwnRocketMQWithUser(t, admin.AccessKey, admin.SecretKey)
	r.AddUser(t, admin, user, "Pub", "Sub", "Get")
	r.AddUser(t, admin, less, "Pub", "Sub")
	as := func(c remoting.Credentials) []string {
		return []string{"HALFBOX_ROCKETMQ_ACCESS_KEY=" + c.AccessKey, "HALFBOX_ROCKETMQ_SECRET_KEY=" + c.SecretKey, "HALFBOX_ROCKETMQ_CREATE_TOPICS=false"}
	}
	s := newRealSite(t, enginetest.MySQL(t), enginetest.MySQL(t), r.NameServers())
	for topic, queues := range map[string]int{s.setting("ROCKETMQ_ORDER_TOPIC"): 4, "%RETRY%" + s.setting("ROCKETMQ_POINTS_GROUP"): 1} {
		require.NoError(t, remoting.EnsureTopic(t.Context(), r.NameServers()[0], topic, queues, admin))
	}
	p := s.serve(t, as(user))
	require.NotNil(t, p)
	wishes := []wish{
		{Key: "a", UserID: 1, Amount: 100, Delivery: "txmsg"},
		{Key: "b", UserID: 1, Amount: 200, Delivery: "outbox"},
	}
	for _, w := range wishes {
		require.Equal(t, w.Delivery, w.fulfil(t, p.api).Via)
	}
	s.requireSettled(t)
	requireReady(t, p.admin)
	require.Eventually(t, func() bool {
		_, text := get(t, p.admin+"/metrics")
		return strings.Contains(text, "halfbox_points_lag{")
	}, wait, 10*tick, "the lag cannot be asked")
	code, text := s.doctor(t, as(user))
	require.Zero(t, code, text)
	s.requireWhole(t, p, wishes)

	code, text = s.doctor(t, as(less))
	require.Equal(t, 1, code, text)
	require.Contains(t, text, "give that user Pub, Sub and Get")
	for _, secret := range []string{user.SecretKey, less.SecretKey} {
		require.NotContains(t, text+p.stderr(), secret)
	}
}

// setting is what the site's environment says of a key.
func (s *site) setting(key string) string {
	for _, kv := range s.env {
		if value, ok := strings.CutPrefix(kv, "HALFBOX_"+key+"="); ok {
			return value
		}
	}
	return ""
}

// doctor runs "halfbox doctor" and returns its exit code and all it printed.
func (s *site) doctor(t testing.TB, env []string) (code int, text string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "doctor", "--data", s.data)
	cmd.Env = append(append(os.Environ(), s.env...), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}

// A database that says nothing is given up soon, also for the look for an idempotency key, so that it does not hold
// every request that the API lets in at once.
func TestEnginesSilentDatabase(t *testing.T) {
	t.Parallel()
	s := realSite(t)
	wire, through := enginetest.MySQLProxy(t, s.dsn["order"])
	p := s.serve(t, []string{"HALFBOX_DATABASE_ORDER_DSN=" + through})
	require.NotNil(t, p)
	first := wish{Key: "before", UserID: 1, Amount: 100}
	no := first.fulfil(t, p.api).OrderNo
	wire.Blackhole()
	for _, delivery := range []string{"txmsg", "outbox"} {
		began := time.Now()
		a, err := wish{Key: "silent", UserID: 1, Amount: 100, Delivery: delivery}.post(p.api)
		require.NoError(t, err)
		require.Equal(t, answer{Status: http.StatusServiceUnavailable, Type: "/problems/unavailable"}, a)
		require.Less(t, time.Since(began), 6*time.Second, delivery)
	}
	began := time.Now()
	status, text := get(t, p.api+"/api/v1/orders/"+no)
	require.Equal(t, http.StatusServiceUnavailable, status, text)
	require.Contains(t, text, "/problems/unavailable")
	require.Less(t, time.Since(began), 6*time.Second)
	wire.Pass()
	again := wish{Key: "silent", UserID: 1, Amount: 100}
	again.fulfil(t, p.api)
	s.requireWhole(t, p, []wish{first, again})
}
