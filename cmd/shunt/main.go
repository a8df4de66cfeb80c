// Command shunt is the one binary: managers, node agents, command line and lab.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
