package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// noteNoPins reports on w that --stop finds nothing to detach in the pin directory, because the
// output must differ from that of a detach. It ignores a directory that cannot be read: the caller
// reports that error.
func noteNoPins(w io.Writer, dir string) {
	if entries, err := os.ReadDir(dir); os.IsNotExist(err) || err == nil && len(entries) == 0 {
		fmt.Fprintf(w, "nothing to detach: no pins in %s (--bpffs; is a BPF file system mounted there in this namespace?)\n", dir)
	}
}

// noteLeft reports on w the objects that --stop left in the pin directory because they do not
// belong to Shunt.
func noteLeft(w io.Writer, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	fmt.Fprintf(w, "left in %s, because other programs pinned them: %s; their links stay attached\n", dir, strings.Join(names, ", "))
}
