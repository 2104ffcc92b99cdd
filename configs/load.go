// Package configs is the configuration tree of the halfbox program: its defaults, how a file and the environment
// override them, and what is refused. Libraries do not see it; internal/app maps it to their own Config structs.
//
// Precedence, lowest first: default.yaml (built in), the file, the environment (HALFBOX_...), command-line flags.
package configs

import (
	"bytes"
	_ "embed" // default.yaml
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
	"go.yaml.in/yaml/v3"
)

//go:embed default.yaml
var defaultYAML []byte

// EnvPrefix begins every environment variable of this program.
const EnvPrefix = "HALFBOX_"

// Load returns the defaults overridden by the file at path (none when empty) and by the environment, which is a
// list like os.Environ's. It does not validate, because flags may still follow.
func Load(path string, environ []string) (Config, error) {
	var c Config
	if err := decode(defaultYAML, &c); err != nil {
		return Config{}, fmt.Errorf("built-in configuration: %w", err)
	}
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return Config{}, fmt.Errorf("configuration: %w", err)
		}
		if err := decode(text, &c); err != nil {
			return Config{}, fmt.Errorf("configuration %s: %w", path, err)
		}
	}
	if err := c.override(environ); err != nil {
		return Config{}, fmt.Errorf("environment: %w", err)
	}
	if err := c.readSecrets(); err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// decode reads YAML over what c holds already. Unknown keys are errors that name their line.
func decode(text []byte, c *Config) error {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	err := dec.Decode(c)
	if errors.Is(err, io.EOF) { // an empty file changes nothing
		return nil
	}
	if err != nil {
		return errors.New(plain(err))
	}
	if err := dec.Decode(new(Config)); !errors.Is(err, io.EOF) {
		return errors.New("holds more than one document")
	}
	return nil
}

// plain rewrites the library's words for a reader who does not know Go.
func plain(err error) string {
	s := strings.TrimPrefix(err.Error(), "yaml: ")
	s = strings.Replace(s, "unmarshal errors:\n  ", "", 1)
	s = regexp.MustCompile(`field (\S+) not found in type \S+`).ReplaceAllString(s, `unknown key "$1"`)
	return regexp.MustCompile("cannot unmarshal !!\\w+ `(.*?)` into (\\S+)").ReplaceAllString(s, `"$1" is not a valid $2`)
}

// Override sets what environ, a list like os.Environ's, says. Variables that are not of this program are left alone.
func (c *Config) Override(environ []string) error { return c.override(environ) }

func (c *Config) override(environ []string) error {
	vars := map[string]string{}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			vars[name] = value
		}
	}
	opts := env.Options{Prefix: EnvPrefix, Environment: vars}
	known, err := env.GetFieldParamsWithOptions(c, opts)
	if err != nil {
		return err
	}
	isKnown := map[string]bool{}
	for _, p := range known {
		isKnown[p.Key] = true
	}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		// Tests, their engines and crash points have variables of their own.
		if !isKnown[name] && !strings.HasPrefix(name, EnvPrefix+"TEST_") && !strings.HasPrefix(name, EnvPrefix+"ENGINES_") && name != EnvPrefix+"ALLOW_FAULTS" {
			return fmt.Errorf("%s is not a setting of halfbox", name)
		}
	}
	return env.ParseWithOptions(c, opts)
}
