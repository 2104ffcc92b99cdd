package netfault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/halfbox/halfbox/internal/remoting"
)

// Cluster stands in front of a whole cluster: a Proxy before each name server and, because the name servers'
// route answers are rewritten, one before each broker.
type Cluster struct {
	onRequest   func(Request)
	nameServers []*Proxy

	bornShift atomic.Int64 // nanoseconds

	mu      sync.Mutex
	brokers map[string]*Proxy // by the broker's own address
	closed  bool
}

// Request is a request on its way to a broker.
type Request struct {
	Code int
	// Messages is how many messages it carries: those of a batch, 1 of a single send, else 0.
	Messages int
}

// NewCluster starts the proxies. The cluster must be up: its brokers are asked for, so that faults can be set before
// the first client comes. onRequest, unless nil, is called concurrently for every request to a broker. Close ends the
// proxies.
func NewCluster(ctx context.Context, nameServers []string, onRequest func(Request)) (_ *Cluster, err error) {
	c := &Cluster{brokers: map[string]*Proxy{}, onRequest: onRequest}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	for _, addr := range nameServers {
		p, err := newProxy(addr, c.sources)
		if err != nil {
			return nil, err
		}
		c.nameServers = append(c.nameServers, p)
	}
	if len(c.nameServers) == 0 {
		return nil, errors.New("no name server")
	}
	// A question on a connection that is kept may take as long as ctx lets it.
	conn, err := remoting.Dial(ctx, c.nameServers[0].Addr(), remoting.Credentials{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	// Every broker that may make topics has this one.
	route, err := conn.Ask(ctx, codeRoute, map[string]string{"topic": "TBW102"})
	if err != nil {
		return nil, err
	}
	if len(c.Brokers()) == 0 {
		return nil, fmt.Errorf("name server %s knows no broker: %s", nameServers[0], route.Remark)
	}
	return c, nil
}

// NameServers is what clients are given instead of the cluster's own addresses.
func (c *Cluster) NameServers() []string {
	addrs := make([]string, len(c.nameServers))
	for i, p := range c.nameServers {
		addrs[i] = p.Addr()
	}
	return addrs
}

// NameServer is the proxy before the i-th name server.
func (c *Cluster) NameServer(i int) *Proxy { return c.nameServers[i] }

// Brokers are the proxies before the brokers known so far, ordered by the brokers' addresses.
func (c *Cluster) Brokers() []*Proxy {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*Proxy
	for _, addr := range slices.Sorted(maps.Keys(c.brokers)) {
		all = append(all, c.brokers[addr])
	}
	return all
}

// Set replaces the fault of all proxies.
func (c *Cluster) Set(f Fault, dirs ...Direction) {
	for _, p := range slices.Concat(c.nameServers, c.Brokers()) {
		p.Set(f, dirs...)
	}
}

// proxyOf returns the address of the proxy before a broker.
func (c *Cluster) proxyOf(broker string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.brokers[broker]; ok {
		return p.Addr(), nil
	}
	if c.closed {
		return "", fmt.Errorf("the proxy of the cluster is closed")
	}
	p, err := newProxy(broker, c.brokerSources)
	if err != nil {
		return "", err
	}
	c.brokers[broker] = p
	return p.Addr(), nil
}

// Close ends every proxy.
func (c *Cluster) Close() {
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
func (c *Cluster) sources() [directions]source {
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

// brokerSources read a broker connection's requests frame by frame when somebody wants to know of them or change them.
func (c *Cluster) brokerSources() [directions]source {
	if c.onRequest == nil && c.bornShift.Load() == 0 {
		return plainSources()
	}
	toServer := func(r io.Reader) ([]byte, error) {
		f, err := readFrame(r)
		if err != nil {
			return nil, err
		}
		if f.response() {
			return f.raw, nil
		}
		f.shiftBornTime(time.Duration(c.bornShift.Load()))
		if c.onRequest != nil {
			c.onRequest(Request{Code: f.head.Code, Messages: f.messages()})
		}
		return f.raw, nil
	}
	return [directions]source{ToServer: toServer, ToClient: plain}
}
