// Command halfbox runs the reference service and its tools; see "halfbox --help".
package main

import (
	"os"

	"github.com/halfbox/halfbox/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	return cli.Run(os.Args[1:], cli.Env{Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ()})
}
