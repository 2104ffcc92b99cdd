// Package app wires the halfbox service by hand: it opens the engines, builds the libraries from the configuration,
// starts them in order and stops them in the reverse order. The application is a value: two can run in one process.
//
// # Lifecycle
//
//	New    validates, opens storage and databases, binds the listeners; a *SetupError names what is wrong
//	Start  starts everything in the background
//	Ready  reports what is still missing
//	Stop   HTTP first, then producers and consumers, then the databases, then the broker
//
// Everything that New opens is registered with the stop stack at once, so a failure half way closes it again.
package app
