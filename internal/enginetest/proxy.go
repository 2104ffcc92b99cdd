package enginetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/netfault"
)

// What tests make faults with; see package netfault.
type (
	Proxy     = netfault.Proxy
	Fault     = netfault.Fault
	Direction = netfault.Direction
)

// The directions and the kinds of faults.
const (
	ToServer = netfault.ToServer
	ToClient = netfault.ToClient

	Pass = netfault.Pass
	Hold = netfault.Hold
	Drop = netfault.Drop
	Cut  = netfault.Cut
)

// NewProxy starts a proxy in front of the server at target (host:port), which ends with the test. The server need not
// run yet.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := netfault.NewProxy(target)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// RocketMQProxy stands in front of a whole cluster.
type RocketMQProxy struct{ *netfault.Cluster }

// NewRocketMQProxy starts the proxies of a cluster, which must be up. They end with the test.
func NewRocketMQProxy(t testing.TB, nameServers []string) *RocketMQProxy {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	c, err := netfault.NewCluster(ctx, nameServers, nil)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return &RocketMQProxy{c}
}

// Broker is the proxy before the broker of a cluster that has one.
func (c *RocketMQProxy) Broker(t testing.TB) *Proxy {
	t.Helper()
	brokers := c.Brokers()
	require.Len(t, brokers, 1)
	return brokers[0]
}
