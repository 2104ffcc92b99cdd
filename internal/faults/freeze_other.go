//go:build !unix

package faults

// FreezeSelf panics: this system has no signal that stops a process.
func FreezeSelf() { panic("crash points cannot freeze a process on this system") }
