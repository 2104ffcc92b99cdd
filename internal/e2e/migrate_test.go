package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// Going up and down waits for another process that migrates, for longer than the service's own statements may take.
func TestEnginesMigrateWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	s := realSite(t)
	for _, name := range []string{"order", "points"} {
		cfg, err := mysql.ParseDSN(s.dsn[name])
		require.NoError(t, err)
		cfg.ReadTimeout = 500 * time.Millisecond
		s.env = append(s.env, map[string]string{"order": "HALFBOX_DATABASE_ORDER_DSN=", "points": "HALFBOX_DATABASE_POINTS_DSN="}[name]+cfg.FormatDSN())
	}
	for _, args := range [][]string{{"up"}, {"down", "--line", "outbox", "--yes"}} {
		db := s.open(t, "order")
		pool, err := db.Write.DB()
		require.NoError(t, err)
		other, err := pool.Conn(t.Context())
		require.NoError(t, err)
		var got int
		const lock = "(SUBSTRING(CONCAT('halfbox_migrate_', DATABASE()), 1, 64)"
		require.NoError(t, other.QueryRowContext(t.Context(), "SELECT GET_LOCK"+lock+", 0)").Scan(&got))
		require.Equal(t, 1, got)

		cmd := exec.CommandContext(t.Context(), binary, append([]string{"migrate"}, args...)...)
		cmd.Env = append(os.Environ(), s.env...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		never(t, 2*time.Second, func() bool { return len(ended) > 0 }, "it did not wait")
		require.NoError(t, other.QueryRowContext(t.Context(), "SELECT RELEASE_LOCK"+lock+")").Scan(&got))
		require.NoError(t, <-ended, "%v: %v", args, lazy(out.String))
		require.NoError(t, other.Close())
		require.NoError(t, db.Close())
	}
}
