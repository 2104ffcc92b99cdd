package enginetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/testcontainers/testcontainers-go"
	tcmysql "github.com/testcontainers/testcontainers-go/modules/mysql"
	"github.com/testcontainers/testcontainers-go/wait"
)

// The images are those of docker-compose.yml.
const (
	mysqlImage    = "mysql:9.7.2"
	rocketmqImage = "apache/rocketmq:5.4.0"

	dockerTimeout  = 5 * time.Minute // a first run pulls images
	nameServerPort = "9876/tcp"
)

// A process starts, or finds, each container once. The containers are shared by all packages of one "go test", which
// testcontainers' session stands for, and removed by its reaper when that has ended.
var (
	dockerHost     = sync.OnceValues(findDocker)
	dockerMySQL    = sync.OnceValues(startMySQL)
	dockerRocketMQ = sync.OnceValues(startRocketMQ)
)

// findDocker returns the host on which containers' ports are published, or why there is no Docker engine.
func findDocker() (host string, err error) {
	// testcontainers panics where it finds no socket at all.
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("there is no Docker engine (%v)", v)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return "", fmt.Errorf("there is no Docker engine (%w)", err)
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	if err := provider.Health(ctx); err != nil {
		return "", fmt.Errorf("there is no Docker engine (%w)", err)
	}
	return provider.DaemonHost(ctx)
}

// shared is the container's name within this "go test".
func shared(engine string) testcontainers.ContainerCustomizer {
	return testcontainers.WithReuseByName("halfbox-test-" + engine + "-" + testcontainers.SessionID()[:12])
}

func startMySQL() (string, error) {
	if _, err := dockerHost(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
	defer cancel()
	c, err := tcmysql.Run(ctx, mysqlImage, shared("mysql"),
		tcmysql.WithUsername("root"), tcmysql.WithPassword("halfbox"), tcmysql.WithDatabase("halfbox_test"),
		testcontainers.WithCmdArgs("--max-connections=1000", "--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"),
	)
	if err != nil {
		return "", fmt.Errorf("MySQL container: %w", err)
	}
	return c.ConnectionString(ctx)
}

func startRocketMQ() (string, error) {
	host, err := dockerHost()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
	defer cancel()
	// The name server hands out the broker's address as the broker knows it, so its port must be the same inside and
	// outside, and its host must be the one that the tests see.
	port, err := freePort()
	if err != nil {
		return "", err
	}
	conf, err := brokerConf(host, port)
	if err != nil {
		return "", err
	}
	c, err := testcontainers.Run(ctx, rocketmqImage, shared("rocketmq"),
		testcontainers.WithExposedPorts(nameServerPort, fmt.Sprintf("%d:%d/tcp", port, port)),
		testcontainers.WithEnv(map[string]string{"JAVA_OPT_EXT": "-Xms256m -Xmx768m -Xmn128m"}),
		testcontainers.WithFiles(testcontainers.ContainerFile{
			Reader: strings.NewReader(conf), ContainerFilePath: "/tmp/broker.conf", FileMode: 0o644,
		}),
		testcontainers.WithCmd("sh", "-c", "sh mqnamesrv & exec sh mqbroker -n 127.0.0.1:9876 -c /tmp/broker.conf"),
		// Not the port: Docker's own proxy answers before the broker does.
		testcontainers.WithWaitStrategyAndDeadline(dockerTimeout, wait.ForLog("The broker[")),
	)
	if err != nil {
		return "", fmt.Errorf("RocketMQ container: %w", err)
	}
	return c.PortEndpoint(ctx, nameServerPort, "")
}

// brokerConf is the configuration of the broker in the container; the settings for tests are those of scripts/engines.
func brokerConf(host string, port int) (string, error) {
	if host == "localhost" {
		host = "127.0.0.1" // the broker puts its address into message ids
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	settings, err := os.ReadFile(filepath.Join(root, "scripts", "engines.d", "broker-test.conf"))
	if err != nil {
		return "", err
	}
	return "brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerRole=ASYNC_MASTER\n" +
		"brokerIP1=" + host + "\nlistenPort=" + strconv.Itoa(port) + "\nautoCreateTopicEnable=true\n" + string(settings), nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// moduleRoot is the folder of go.mod, above the package's folder in which a test runs.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}
