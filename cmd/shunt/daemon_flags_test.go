package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// anyText lists the daemons' flags that accept any text: node names, and files, which may be
// absent.
var anyText = map[string]string{
	"mux":  "name token-file check-program",
	"host": "name token-file check-program",
	"run":  "name",
}

// TestDaemonFlagsAreChecked checks that the script of the daemons' flags refuses each flag at least
// once and names it.
func TestDaemonFlagsAreChecked(t *testing.T) {
	text, err := os.ReadFile("testdata/cli/daemons.txt")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{} // command and flag that an error names
	var refusals, codes int
	for line := range strings.Lines(string(text)) {
		if line == "exit 2\n" {
			codes++
		}
		if command, wrong, found := strings.Cut(strings.TrimPrefix(line, "! shunt "), ": "); found && strings.HasPrefix(line, "! ") {
			refusals++
			flag, _, _ := strings.Cut(strings.TrimPrefix(wrong, "--"), ":")
			told[command+" "+flag] = true
		}
	}
	if commands := strings.Count(string(text), "$ shunt "); refusals != commands || codes != commands {
		t.Errorf("%d command lines, %d refusals of one line, %d of them with exit code 2", commands, refusals, codes)
	}
	for _, daemon := range []string{"manager", "mux", "host", "run"} {
		cmd, _, err := newRoot().Find([]string{daemon})
		if err != nil {
			t.Fatal(err)
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			free := strings.Contains(" "+anyText[daemon]+" ", " "+f.Name+" ")
			if f.Name != "help" && told[daemon+" "+f.Name] == free {
				t.Errorf("shunt %s --%s: refused in the story: %v, any text fits: %v", daemon, f.Name, !free, free)
			}
		})
	}
}
