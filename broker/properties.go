package broker

import (
	"strings"
)

// properties are a message's properties in the order they came. Wire form:
// key \x01 value \x02, repeated; the last \x02 may be missing.
type properties []property

type property struct{ key, value string }

const (
	nameValueSeparator = "\x01"
	propertySeparator  = "\x02"
	maxPropertiesSize  = 1<<15 - 1 // its length is a signed int16 on the wire
)

// parseProperties never fails: a pair without a separator, or with two, is
// dropped as the clients do.
func parseProperties(s string) properties {
	if s == "" {
		return nil
	}
	var props properties
	for pair := range strings.SplitSeq(s, propertySeparator) {
		key, value, ok := strings.Cut(pair, nameValueSeparator)
		if !ok || key == "" || strings.Contains(value, nameValueSeparator) {
			continue
		}
		props = props.with(key, value)
	}
	return props
}

func (p properties) String() string {
	size := 0
	for _, kv := range p {
		size += len(kv.key) + len(kv.value) + 2
	}
	var b strings.Builder
	b.Grow(size)
	for _, kv := range p {
		b.WriteString(kv.key)
		b.WriteString(nameValueSeparator)
		b.WriteString(kv.value)
		b.WriteString(propertySeparator)
	}
	return b.String()
}

func (p properties) get(key string) (string, bool) {
	for _, kv := range p {
		if kv.key == key {
			return kv.value, true
		}
	}
	return "", false
}

func (p properties) value(key string) string {
	v, _ := p.get(key)
	return v
}

// with sets key in place, or appends it.
func (p properties) with(key, value string) properties {
	for i := range p {
		if p[i].key == key {
			p[i].value = value
			return p
		}
	}
	return append(p, property{key, value})
}

// without returns a copy that lacks the keys.
func (p properties) without(keys ...string) properties {
	out := make(properties, 0, len(p)+2)
next:
	for _, kv := range p {
		for _, key := range keys {
			if kv.key == key {
				continue next
			}
		}
		out = append(out, kv)
	}
	return out
}

func (p properties) toMap() map[string]string {
	m := make(map[string]string, len(p))
	for _, kv := range p {
		m[kv.key] = kv.value
	}
	return m
}
