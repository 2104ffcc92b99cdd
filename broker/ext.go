package broker

import (
	"fmt"
	"math"
	"strconv"
)

// extReader reads typed values of a request's extFields and remembers the first
// bad one, so that a handler checks for an error once.
type extReader struct {
	ext map[string]string
	err error
}

func (r *extReader) fail(key, value, kind string) {
	if r.err == nil {
		r.err = reject(respSystemError, fmt.Sprintf("request field %s: %q is not %s", key, value, kind))
	}
}

func (r *extReader) str(key string) string { return r.ext[key] }

// need reads a string that must not be empty.
func (r *extReader) need(key string) string {
	v := r.ext[key]
	if v == "" {
		r.fail(key, v, "a value")
	}
	return v
}

// num reads an integer; an absent one is fallback.
func (r *extReader) num(key string, fallback int64) int64 {
	v, ok := r.ext[key]
	if !ok || v == "" {
		return fallback
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		r.fail(key, v, "a number")
		return fallback
	}
	return n
}

// num32 reads an integer of 32 bits.
func (r *extReader) num32(key string, fallback int) int {
	n := r.num(key, int64(fallback))
	if n < math.MinInt32 || n > math.MaxInt32 {
		r.fail(key, r.ext[key], "a number of 32 bits")
		return fallback
	}
	return int(n)
}
