package configs

import (
	"fmt"
	"os"
	"strings"
)

// Secret is a string that is never printed. Convert it to string to use it.
type Secret string

const redacted = "***"

// String hides the value in logs and errors.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the value from %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText hides the value in YAML and JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a value.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}

// readSecrets fills the secrets that a file holds, which is how orchestrators hand them in.
func (c *Config) readSecrets() error {
	for _, s := range []struct {
		key, file string
		value     *Secret
	}{
		{"admin.token", c.Admin.TokenFile, &c.Admin.Token},
		{"database.order_dsn", c.Database.OrderDSNFile, &c.Database.OrderDSN},
		{"database.points_dsn", c.Database.PointsDSNFile, &c.Database.PointsDSN},
		{"rocketmq.secret_key", c.RocketMQ.SecretKeyFile, &c.RocketMQ.SecretKey},
	} {
		if s.file == "" {
			continue
		}
		if *s.value != "" {
			return fmt.Errorf("%s and %s_file are both set: keep one", s.key, s.key)
		}
		text, err := os.ReadFile(s.file)
		if err != nil {
			return fmt.Errorf("%s_file: %w", s.key, err)
		}
		*s.value = Secret(strings.TrimRight(string(text), "\r\n"))
		if *s.value == "" {
			return fmt.Errorf("%s_file: %s is empty", s.key, s.file)
		}
	}
	return nil
}
