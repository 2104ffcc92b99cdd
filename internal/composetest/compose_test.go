package composetest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/configs"
)

const root = "../.."

// load loads docker-compose.yml as "docker compose" does, with these profiles and this environment.
func load(t *testing.T, env []string, profiles ...string) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")},
		cli.WithProfiles(profiles), cli.WithEnv(env), cli.WithResolvedPaths(true), cli.WithConsistency(true))
	require.NoError(t, err)
	project, err := opts.LoadProject(t.Context())
	require.NoError(t, err)
	return project
}

func loadAll(t *testing.T) *types.Project { return load(t, nil, "*") }

func TestProfiles(t *testing.T) {
	t.Parallel()
	always := []string{"halfbox", "mysql", "rocketmq-broker", "rocketmq-dashboard", "rocketmq-namesrv"}
	for profile, more := range map[string][]string{
		"":              nil,
		"kafka":         {"kafka"},
		"rabbitmq":      {"rabbitmq"},
		"observability": {"grafana", "prometheus"},
	} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			want := slices.Sorted(slices.Values(slices.Concat(always, more)))
			require.Equal(t, want, slices.Sorted(maps.Keys(load(t, nil, profile).Services)))
		})
	}
}

func TestImagesArePinned(t *testing.T) {
	t.Parallel()
	version := regexp.MustCompile(`^[a-z0-9/.-]+:v?\d+\.\d+\.\d+(-[a-z0-9]+)?$`)
	for name, service := range loadAll(t).Services {
		if service.Build != nil {
			require.Empty(t, service.Image, name)
			continue
		}
		require.Regexp(t, version, service.Image, name)
	}
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	from := regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(string(dockerfile), -1)
	require.Len(t, from, 2)
	for _, image := range from {
		require.Regexp(t, version, image[1])
	}
}

// The toolchain of the image is one that go.mod takes without downloading another.
func TestDockerfileHasTheToolchain(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	language := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)
	require.NotNil(t, language)
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	require.Contains(t, string(dockerfile), "FROM golang:"+string(language[1])+".")
}

func TestDockerfileRunsUnprivilegedAndStatic(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	for _, line := range []string{`CGO_ENABLED=0 go build`, "\nUSER 10001:10001\n", "\nHEALTHCHECK "} {
		require.Contains(t, string(text), line)
	}
}

// The test kit runs the same images.
func TestTestKitHasTheSameImages(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "internal/enginetest/docker.go"))
	require.NoError(t, err)
	services := loadAll(t).Services
	for _, name := range []string{"mysql", "rocketmq-broker"} {
		require.Contains(t, string(text), fmt.Sprintf("%q", services[name].Image), name)
	}
	require.Equal(t, services["rocketmq-broker"].Image, services["rocketmq-namesrv"].Image)
}

// What waits for a service waits until it is healthy, and what is waited for can say so.
func TestHealth(t *testing.T) {
	t.Parallel()
	services := loadAll(t).Services
	for name, service := range services {
		for on, dependency := range service.DependsOn {
			require.Equal(t, types.ServiceConditionHealthy, dependency.Condition, "%s depends on %s", name, on)
			require.NotNil(t, services[on].HealthCheck, on)
		}
		if check := service.HealthCheck; check != nil {
			require.NotEmpty(t, check.Test, name)
			require.NotNil(t, check.Interval, name)
			require.NotNil(t, check.Timeout, name)
			require.NotNil(t, check.Retries, name)
		} else {
			require.Equal(t, "rocketmq-dashboard", name, "the one service that nothing waits for")
		}
	}
	require.Contains(t, services["halfbox"].DependsOn, "mysql")
	require.Contains(t, services["halfbox"].DependsOn, "rocketmq-broker")
}

func TestDataIsInVolumes(t *testing.T) {
	t.Parallel()
	project := loadAll(t)
	used := map[string]bool{}
	for _, name := range []string{"mysql", "rocketmq-broker", "kafka", "rabbitmq", "prometheus", "grafana"} {
		volumes := project.Services[name].Volumes
		require.Len(t, volumes, 1, name)
		require.Equal(t, types.VolumeTypeVolume, volumes[0].Type, name)
		require.Contains(t, project.Volumes, volumes[0].Source, name)
		require.False(t, used[volumes[0].Source], "%s has a volume of its own", name)
		used[volumes[0].Source] = true
	}
	require.Len(t, project.Volumes, len(used))
}

// Published ports are this machine's alone, and no two services want the same one.
func TestPorts(t *testing.T) {
	t.Parallel()
	taken := map[string]string{}
	for name, service := range loadAll(t).Services {
		require.NotEmpty(t, service.Ports, name)
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s: %v", name, port)
			require.NotContains(t, taken, port.Published, "%s and %s", name, taken[port.Published])
			taken[port.Published] = name
		}
	}
}

// Clients use the port that the broker says it has, so it is the same inside and outside.
func TestBrokerPorts(t *testing.T) {
	t.Parallel()
	project := loadAll(t)
	broker := project.Services["rocketmq-broker"]
	published := map[string]bool{}
	for _, port := range broker.Ports {
		require.Equal(t, fmt.Sprint(port.Target), port.Published)
		published[port.Published] = true
	}
	conf := project.Configs["broker-conf"].Content
	require.True(t, published[setting(t, conf, "listenPort")], "listenPort is published")
	require.Equal(t, "rocketmq-broker", setting(t, conf, "brokerIP1"), "the broker's name in the network")
	own := load(t, []string{"BROKER_IP=127.0.0.1"}).Configs["broker-conf"].Content
	require.Equal(t, "127.0.0.1", setting(t, own, "brokerIP1"), "an address for the host")

	require.Len(t, broker.Volumes, 1)
	require.True(t, strings.HasPrefix(setting(t, conf, "storePathRootDir"), broker.Volumes[0].Target), "what is stored is in the volume")
	require.True(t, strings.HasPrefix(setting(t, conf, "storePathCommitLog"), broker.Volumes[0].Target), "what is stored is in the volume")
	require.Contains(t, broker.Command, broker.Configs[0].Target, "the broker is told where its configuration is")
	require.Contains(t, broker.Command, project.Services["halfbox"].Environment.Resolve(func(string) (string, bool) { return "", false }).ToMapping()["HALFBOX_ROCKETMQ_NAME_SERVERS"])
}

func setting(t *testing.T, conf, key string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindStringSubmatch(conf)
	require.NotNil(t, found, key)
	return found[1]
}

// The environment of the halfbox service is a configuration that the program takes.
func TestEnvironmentIsValid(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"defaults": nil,
		"set":      {"MYSQL_PASSWORD=p@ss/word?x", "HALFBOX_ADMIN_TOKEN=secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			project := load(t, env)
			service := project.Services["halfbox"]
			var environ []string
			for key, value := range service.Environment {
				require.True(t, strings.HasPrefix(key, configs.EnvPrefix), key)
				require.NotNil(t, value, key)
				environ = append(environ, key+"="+*value)
			}
			cfg, err := configs.Load("", environ)
			require.NoError(t, err)
			require.NoError(t, cfg.Validate())
			require.Equal(t, "mysql", cfg.Database.Driver)
			require.False(t, cfg.RocketMQ.Embedded())
			require.Equal(t, "always", cfg.Database.Migrate, "the tables must come from somewhere")
			require.NotEmpty(t, cfg.Admin.Token, "the operator's listener is reached by other containers")
			require.Contains(t, project.Configs["mysql-schemas"].Content, "halfbox_order")
			require.Contains(t, string(cfg.Database.OrderDSN), "@tcp(mysql:3306)/halfbox_order")
			require.Contains(t, string(cfg.Database.PointsDSN), "@tcp(mysql:3306)/halfbox_points")
			require.NotContains(t, project.Configs["mysql-schemas"].Content, "$", "nothing is left to be replaced")
			token := string(cfg.Admin.Token)
			require.Contains(t, load(t, env, "observability").Configs["prometheus-conf"].Content, "credentials: "+token+"\n")
		})
	}
}
