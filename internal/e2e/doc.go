// Package e2e tests the program as its users run it: child processes, real signals, kill -9. The checks look at the
// databases, not at the answers that clients happened to get.
package e2e
