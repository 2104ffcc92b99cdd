package database_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/database"
)

const dsnStart = "app:s3cr3t@tcp(127.0.0.1:3306)/orders"

func TestDSNIsCompleted(t *testing.T) {
	t.Parallel()
	cfg, err := database.CompleteDSN(dsnStart, 2*time.Second)
	require.NoError(t, err)
	require.True(t, cfg.ParseTime)
	require.True(t, cfg.ClientFoundRows)
	require.True(t, cfg.InterpolateParams)
	require.False(t, cfg.MultiStatements)
	require.Equal(t, time.UTC, cfg.Loc)
	require.Equal(t, 5*time.Second, cfg.Timeout)
	require.Equal(t, 15*time.Second, cfg.ReadTimeout)
	require.Equal(t, 15*time.Second, cfg.WriteTimeout)
	require.Equal(t, map[string]string{
		"time_zone": "'+00:00'", "transaction_isolation": "'READ-COMMITTED'", "wait_timeout": "30", "innodb_lock_wait_timeout": "2",
	}, cfg.Params)
	require.Equal(t, "s3cr3t", cfg.Passwd)
	require.Equal(t, "orders", cfg.DBName)
}

func TestDSNKeepsWhatItSays(t *testing.T) {
	t.Parallel()
	cfg, err := database.CompleteDSN(dsnStart+"?parseTime=true&clientFoundRows=true&loc=UTC&multiStatements=false&time_zone=%27UTC%27"+
		"&timeout=1s&readTimeout=2s&writeTimeout=3s&wait_timeout=5&innodb_lock_wait_timeout=9", time.Second)
	require.NoError(t, err)
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}, []time.Duration{cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout})
	require.Equal(t, "5", cfg.Params["wait_timeout"])
	require.Equal(t, "9", cfg.Params["innodb_lock_wait_timeout"])
	require.Equal(t, "'UTC'", cfg.Params["time_zone"])
}

func TestDSNLockWaitInWholeSeconds(t *testing.T) {
	t.Parallel()
	for wait, want := range map[time.Duration]string{
		0: "1", 200 * time.Millisecond: "1", time.Second: "1", 1400 * time.Millisecond: "1", 1600 * time.Millisecond: "2", time.Minute: "60",
	} {
		cfg, err := database.CompleteDSN(dsnStart, wait)
		require.NoError(t, err)
		require.Equal(t, want, cfg.Params["innodb_lock_wait_timeout"], "%v", wait)
	}
}

func TestDSNRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ dsn, says string }{
		"parseTime":               {dsnStart + "?parseTime=false", "parseTime"},
		"clientFoundRows":         {dsnStart + "?clientFoundRows=false", "clientFoundRows"},
		"loc":                     {dsnStart + "?loc=Asia%2FShanghai", "loc"},
		"loc local":               {dsnStart + "?loc=Local", "loc"},
		"multiStatements":         {dsnStart + "?multiStatements=true", "multiStatements"},
		"time_zone":               {dsnStart + "?time_zone=%27%2B08%3A00%27", "time_zone"},
		"autocommit":              {dsnStart + "?autocommit=0", "autocommit"},
		"no schema":               {"app:s3cr3t@tcp(127.0.0.1:3306)/", "schema"},
		"nothing":                 {"", "schema"},
		"no slash":                {"app:s3cr3t@tcp(127.0.0.1:3306)", "DSN"},
		"no address":              {"app:s3cr3t/orders", "DSN"},
		"open address":            {"app:s3cr3t@tcp(127.0.0.1:3306/orders", "DSN"},
		"unknown network":         {"app:s3cr3t@s3cr3t/orders", "DSN"},
		"a URL":                   {"mysql://app:s3cr3t@127.0.0.1:3306/orders", "DSN"},
		"slash in the password":   {"app:s3cr3t/@tcp(127.0.0.1:3306)", "DSN"},
		"bad bool":                {dsnStart + "?parseTime=perhaps", "perhaps"},
		"bad timeout":             {dsnStart + "?timeout=soon", "soon"},
		"question mark, password": {"app:s3cr3t?x=1@tcp(127.0.0.1:3306)/orders?multiStatements=true", "multiStatements"},
		"percent, password":       {"app:s3cr3t?%zz@tcp(127.0.0.1:3306)/orders?loc=Local", "loc"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := database.CompleteDSN(tt.dsn, time.Second)
			require.Error(t, err)
			require.Contains(t, err.Error(), tt.says)
			require.NotContains(t, err.Error(), "s3cr3t", "a password must not be in an error text")
			_, err = database.OpenMySQL(tt.dsn, database.Options{})
			require.Error(t, err)
			require.NotContains(t, err.Error(), "s3cr3t")
		})
	}
}

// Characters that mean something in a DSN are no trouble in a password.
func TestDSNPasswordWithOddCharacters(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"a?parseTime=false", "a?%zz", "a@b:c/d", "loc=Local&", "'; --"} {
		cfg, err := database.CompleteDSN(strings.Replace(dsnStart, "s3cr3t", password, 1), time.Second)
		require.NoError(t, err, password)
		require.Equal(t, password, cfg.Passwd)
	}
}

func TestDSNCannotConnect(t *testing.T) {
	t.Parallel()
	db, err := database.OpenMySQL("app:s3cr3t@tcp(127.0.0.1:1)/orders", database.Options{})
	require.NoError(t, err, "opening does not connect")
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	err = db.Ping(t.Context())
	require.Error(t, err)
	require.NotContains(t, err.Error(), "s3cr3t")
}
