package enginetest

import (
	"os"
	"testing"
)

// The environment variables that this package looks at.
const (
	// EnvMySQL is the DSN of a MySQL server (go-sql-driver/mysql form) on which tests may make schemas.
	EnvMySQL = "HALFBOX_TEST_MYSQL_DSN"
	// EnvRocketMQ is a list of name server addresses (host:port), separated by commas.
	EnvRocketMQ = "HALFBOX_TEST_ROCKETMQ"
	// EnvEngines set to "real" makes a missing engine a failure.
	EnvEngines = "HALFBOX_TEST_ENGINES"
)

// Required tells whether a test without its engine fails instead of being skipped.
func Required() bool { return os.Getenv(EnvEngines) == "real" }

// missing ends the test, because there is no engine.
func missing(t testing.TB, engine, env string, why error) {
	t.Helper()
	const how = `%s: %s is not set and %v; start one with eval "$(scripts/engines up)"`
	if Required() {
		t.Fatalf(how, engine, env, why)
	}
	t.Skipf(how, engine, env, why)
}
