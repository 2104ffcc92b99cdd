// Package cli is the halfbox command line. Exit codes: 0 done, 1 the check found something or the run failed,
// 2 usage or configuration.
package cli
