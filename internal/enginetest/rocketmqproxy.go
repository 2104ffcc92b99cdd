package enginetest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/halfbox/halfbox/internal/remoting"
)

// RocketMQProxy stands in front of a whole cluster: a Proxy before each name server and, because the name servers'
// route answers are rewritten, one before each broker.
type RocketMQProxy struct {
	nameServers []*Proxy

	mu      sync.Mutex
	brokers map[string]*Proxy // by the broker's own address
	closed  bool
}

// NewRocketMQProxy starts the proxies. The cluster must be up: its brokers are asked for, so that faults can be set
// before the first client comes. They are closed at the end of the test.
func NewRocketMQProxy(t testing.TB, nameServers []string) *RocketMQProxy {
	t.Helper()
	require.NotEmpty(t, nameServers)
	c := &RocketMQProxy{brokers: map[string]*Proxy{}}
	t.Cleanup(c.close)
	for _, addr := range nameServers {
		p, err := newProxy(addr, c.sources)
		require.NoError(t, err)
		c.nameServers = append(c.nameServers, p)
	}
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	route, err := remoting.Ask(ctx, c.nameServers[0].Addr(), codeRoute, map[string]string{"topic": "TBW102"}, remoting.Credentials{}) // every broker that may make topics has it
	require.NoError(t, err)
	require.NotEmpty(t, c.Brokers(), "name server %s knows no broker: %s", nameServers[0], route.Remark)
	return c
}

// NameServers is what clients are given instead of the cluster's own addresses.
func (c *RocketMQProxy) NameServers() []string {
	addrs := make([]string, len(c.nameServers))
	for i, p := range c.nameServers {
		addrs[i] = p.Addr()
	}
	return addrs
}

// NameServer is the proxy before the i-th name server.
func (c *RocketMQProxy) NameServer(i int) *Proxy { return c.nameServers[i] }

// Broker is the proxy before the broker of a cluster that has one.
func (c *RocketMQProxy) Broker(t testing.TB) *Proxy {
	t.Helper()
	brokers := c.Brokers()
	require.Len(t, brokers, 1)
	return brokers[0]
}

// Brokers are the proxies before the brokers known so far, ordered by the brokers' addresses.
func (c *RocketMQProxy) Brokers() []*Proxy {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Proxy
	for _, addr := range slices.Sorted(maps.Keys(c.brokers)) {
		all = append(all, c.brokers[addr])
	}
	return all
}

// Set replaces the fault of all proxies.
func (c *RocketMQProxy) Set(f Fault, dirs ...Direction) {
	for _, p := range slices.Concat(c.nameServers, c.Brokers()) {
		p.Set(f, dirs...)
	}
}

// proxyOf returns the address of the proxy before a broker.
func (c *RocketMQProxy) proxyOf(broker string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.brokers[broker]; ok {
		return p.Addr(), nil
	}
	if c.closed {
		return "", fmt.Errorf("the proxy of the cluster is closed")
	}
	p, err := newProxy(broker, plainSources)
	if err != nil {
		return "", err
	}
	c.brokers[broker] = p
	return p.Addr(), nil
}

func (c *RocketMQProxy) close() {
	for _, p := range c.nameServers {
		p.Close()
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	for _, p := range c.Brokers() {
		p.Close()
	}
}

// sources read a name server connection frame by frame and rewrite the answers to route requests.
func (c *RocketMQProxy) sources() [directions]source {
	var (
		mu    sync.Mutex
		asked = map[int32]bool{} // the numbers of route requests under way
	)
	toServer := func(r io.Reader) ([]byte, error) {
		f, err := readFrame(r)
		if err != nil {
			return nil, err
		}
		if !f.response() && (f.head.Code == codeRoute || f.head.Code == codeClusterInfo) {
			mu.Lock()
			asked[f.head.Opaque] = true
			mu.Unlock()
		}
		return f.raw, nil
	}
	toClient := func(r io.Reader) ([]byte, error) {
		f, err := readFrame(r)
		if err != nil || !f.response() {
			return f.raw, err
		}
		mu.Lock()
		route := asked[f.head.Opaque]
		delete(asked, f.head.Opaque)
		mu.Unlock()
		if !route {
			return f.raw, nil
		}
		body := rewriteRoute(f.body, func(addr string) string {
			through, proxyErr := c.proxyOf(addr)
			if proxyErr != nil {
				err = proxyErr
			}
			return through
		})
		return f.withBody(body), err
	}
	return [directions]source{ToServer: toServer, ToClient: toClient}
}
