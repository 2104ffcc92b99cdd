package checkback

import (
	"errors"
	"fmt"
	"sync"
)

// registry holds the resolvers by event type.
type registry struct {
	mu     sync.RWMutex
	byType map[string]*source
}

func newRegistry(resolvers map[string]Resolver) *registry {
	r := &registry{byType: map[string]*source{}}
	for eventType, resolver := range resolvers {
		r.byType[eventType] = &source{Resolver: resolver}
	}
	return r
}

func (r *registry) find(eventType string) (*source, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	found, ok := r.byType[eventType]
	return found, ok
}

// Register adds the resolver of an event type, also while checks are answered: until then its half messages are
// answered UNKNOWN and counted, never guessed, and the broker asks again. A type is registered once.
func (c *Checker) Register(eventType string, r Resolver) error {
	if eventType == "" || r == nil {
		return errors.New("checkback: Register needs an event type and a Resolver")
	}
	c.resolvers.mu.Lock()
	defer c.resolvers.mu.Unlock()
	if _, taken := c.resolvers.byType[eventType]; taken {
		return fmt.Errorf("checkback: event type %q has a resolver already", eventType)
	}
	c.resolvers.byType[eventType] = &source{Resolver: r}
	return nil
}
