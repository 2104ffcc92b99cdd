package broker

import (
	"slices"
	"sync"
)

// groups knows which connections belong to which producer and consumer groups.
// A client is live as long as its connection is: there is no heartbeat expiry
// beyond the connection's idle timeout.
type groups struct {
	mu        sync.Mutex
	producers map[string]*producerGroup
	consumers map[string]*consumerGroup
	changed   chan struct{} // closed and replaced at every change
}

type producerGroup struct {
	members []member // one for each connection
	next    int
}

type consumerGroup struct {
	members []member
	subs    map[string]subscription // by topic, of the newest heartbeat
}

type member struct {
	c        *conn
	clientID string
}

func newGroups() *groups {
	return &groups{
		producers: make(map[string]*producerGroup), consumers: make(map[string]*consumerGroup),
		changed: make(chan struct{}),
	}
}

func (g *groups) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *groups) addProducer(group, clientID string, c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.producers[group]
	if p == nil {
		p = &producerGroup{}
		g.producers[group] = p
	}
	if !p.has(c) {
		p.members = append(p.members, member{c, clientID})
		g.announce()
	}
}

func (p *producerGroup) has(c *conn) bool {
	return slices.ContainsFunc(p.members, func(m member) bool { return m.c == c })
}

// addConsumer returns the connections to notify: all of the group when a member
// or the subscription is new.
func (g *groups) addConsumer(group, clientID string, c *conn, subs map[string]subscription) []*conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	cg := g.consumers[group]
	if cg == nil {
		cg = &consumerGroup{}
		g.consumers[group] = cg
	}
	changed := !sameSubscriptions(cg.subs, subs)
	cg.subs = subs
	if !slices.ContainsFunc(cg.members, func(m member) bool { return m.c == c && m.clientID == clientID }) {
		cg.members = append(cg.members, member{c, clientID})
		changed = true
	}
	if !changed {
		return nil
	}
	g.announce()
	return cg.conns()
}

func (cg *consumerGroup) conns() []*conn {
	all := make([]*conn, len(cg.members))
	for i, m := range cg.members {
		all[i] = m.c
	}
	return all
}

// removeProducer and removeConsumer take members of one connection out; an
// empty group is forgotten.
func (g *groups) removeProducer(group string, c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropProducer(group, c)
}

func (g *groups) dropProducer(group string, c *conn) {
	p := g.producers[group]
	if p == nil || !p.has(c) {
		return
	}
	p.members = slices.DeleteFunc(p.members, func(m member) bool { return m.c == c })
	if len(p.members) == 0 {
		delete(g.producers, group)
	}
	g.announce()
}

// removeConsumer returns the connections to notify. An empty clientID takes
// out every client of the connection.
func (g *groups) removeConsumer(group, clientID string, c *conn) []*conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dropConsumer(group, clientID, c)
}

func (g *groups) dropConsumer(group, clientID string, c *conn) []*conn {
	cg := g.consumers[group]
	if cg == nil {
		return nil
	}
	before := len(cg.members)
	cg.members = slices.DeleteFunc(cg.members, func(m member) bool {
		return m.c == c && (clientID == "" || m.clientID == clientID)
	})
	if len(cg.members) == before {
		return nil
	}
	g.announce()
	if len(cg.members) == 0 {
		delete(g.consumers, group)
	}
	return cg.conns()
}

// remove forgets a connection. It returns the connections to notify by group.
func (g *groups) remove(c *conn) map[string][]*conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group := range g.producers {
		g.dropProducer(group, c)
	}
	notify := make(map[string][]*conn)
	for group := range g.consumers {
		if rest := g.dropConsumer(group, "", c); len(rest) > 0 {
			notify[group] = rest
		}
	}
	return notify
}

// nextProducer picks round robin among the group's connections, passing over
// ones that are closed or do not read. It returns nil when there is none.
func (g *groups) nextProducer(group string) *conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.producers[group]
	if p == nil {
		return nil
	}
	for range p.members {
		c := p.members[p.next%len(p.members)].c
		p.next++
		if !c.closed.Load() && !c.slow() {
			return c
		}
	}
	return nil
}

// producerMembers returns the members of a producer group; none when it is not connected.
func (g *groups) producerMembers(group string) []member {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.producers[group]; p != nil {
		return slices.Clone(p.members)
	}
	return nil
}

func (g *groups) isConsumer(group string, c *conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	cg := g.consumers[group]
	return cg != nil && slices.ContainsFunc(cg.members, func(m member) bool { return m.c == c })
}

func (g *groups) consumerIDs(group string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	ids := []string{}
	if cg := g.consumers[group]; cg != nil {
		for _, m := range cg.members {
			if !slices.Contains(ids, m.clientID) {
				ids = append(ids, m.clientID)
			}
		}
	}
	return ids
}

// subscription returns the group's subscription of a topic; false when the
// group is not connected or does not name the topic.
func (g *groups) subscription(group, topic string) (subscription, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cg := g.consumers[group]; cg != nil {
		sub, ok := cg.subs[topic]
		return sub, ok
	}
	return subscription{}, false
}

// watch returns whether cond holds and a channel that is closed at the next change.
func (g *groups) watch(cond func(*groups) bool) (bool, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return cond(g), g.changed
}
