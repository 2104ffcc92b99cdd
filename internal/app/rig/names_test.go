package rig

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/compare"
	"github.com/halfbox/halfbox/configs"
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
