// Command shunt is the single binary of Shunt: managers, node agents, command line and lab.
package main

import (
	"os"

	"github.com/shuntlb/shunt/internal/probe/worker"
)

func main() {
	worker.Child()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
