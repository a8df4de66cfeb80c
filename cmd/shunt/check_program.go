package main

import (
	"fmt"
	"io"

	"github.com/shuntlb/shunt/internal/dataplane"
)

const checkProgramUsage = "check whether the shunt in this `file`, of any build, can take over the tables that are pinned in --bpffs, and end: nothing is changed, and the file is not run. The exit code is 1 when it cannot"

// checkProgram prints that another build can take over pinned tables. The error contains the reason
// if it cannot.
func checkProgram(w io.Writer, file, dir string, check func(file, dir string) (dataplane.TakeOver, error)) error {
	if file == "" {
		return usagef(`--check-program: "": must be the file of a shunt`)
	}
	if err := checkDirectories([2]string{"--bpffs", dir}); err != nil {
		return err
	}
	found, err := check(file, dir)
	if err != nil {
		return fmt.Errorf("check program: %w", err)
	}
	if found.Pinned == 0 {
		_, err = fmt.Fprintf(w, "%s starts with empty tables: there are no pins in %s\n", file, dir)
	} else {
		_, err = fmt.Fprintf(w, "%s can take over: pins in %s have ABI version %d, it has %d\n", file, dir, found.Pinned, found.Program)
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
