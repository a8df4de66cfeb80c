package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

var update = flag.Bool("update", false, "write the expected output of scripts anew")

// TestScripts runs the scripts of testdata/cli. A script is a file of commands and their output:
//
//	# a comment
//	@ report           an event at the manager
//	$ shunt get nodes  a command line, split at spaces; "< FILE" at its end is standard input
//	| …                a line on standard output
//	! …                a line on standard error
//	exit 1             the exit code, unless it is 0
//
// Every script has its own manager.
func TestScripts(t *testing.T) {
	stories, err := filepath.Glob("testdata/cli/*.txt")
	if err != nil || len(stories) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, story := range stories {
		t.Run(strings.TrimSuffix(filepath.Base(story), ".txt"), func(t *testing.T) {
			path, err := filepath.Abs(story)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Chdir("testdata/cli/files")
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// play runs a script and returns it with the actual output.
func play(t *testing.T, story string) string {
	fake := startFake(t)
	var out strings.Builder
	for line := range strings.Lines(story) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "@ "):
			fmt.Fprintln(&out, line)
			happen(t, fake, line[2:])
		case strings.HasPrefix(line, "$ shunt"):
			fmt.Fprintln(&out, line)
			var printed strings.Builder
			execute(t, &printed, strings.TrimPrefix(line, "$ shunt"))
			out.WriteString(strings.ReplaceAll(printed.String(), fake.url, "https://MANAGER"))
		}
	}
	return out.String()
}

// happen changes the manager.
func happen(t *testing.T, fake *fakeManager, what string) {
	switch what {
	case "report":
		fake.report()
	case "lease":
		fake.lease()
	case "events":
		fake.happen()
	case "doubt":
		fake.doubt()
	case "decide":
		fake.decide()
	case "place":
		fake.place()
	case "withdraw":
		fake.withdraw()
	case "denied":
		fake.fail = connect.NewError(connect.CodePermissionDenied, errors.New("role viewer may not write"))
	case "member away":
		fake.members.Members = append(fake.members.Members, &apiv1.Member{Name: "m3", Peer: "10.99.0.13:8444", Error: "not heard of for 4s"})
	case "outside":
		fake.members.Outside = true
		for _, m := range fake.members.GetMembers() {
			m.Peer = ""
		}
	case "trace fails":
		fake.traces[1].Error = "no answer within 1s"
	case "token file", "bad token file":
		file, text := filepath.Join(t.TempDir(), "token"), "shunt_token\n"
		if what == "bad token file" {
			text = "very secret"
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(tokenVariable, file)
	case "no configuration":
		t.Setenv(configVariable, "")
		t.Setenv("HOME", t.TempDir())
		t.Setenv("XDG_CONFIG_HOME", "")
	default:
		t.Fatalf("unknown event %q", what)
	}
}

func execute(t *testing.T, out io.Writer, line string) {
	args := strings.Fields(line)
	var stdin io.Reader = strings.NewReader("")
	if n := len(args); n > 1 && args[n-2] == "<" {
		text, err := os.ReadFile(args[n-1])
		if err != nil {
			t.Fatal(err)
		}
		stdin, args = bytes.NewReader(text), args[:n-2]
	}
	var stdout, stderr bytes.Buffer
	code := run(args, stdin, &stdout, &stderr)
	for line := range strings.Lines(stdout.String()) {
		fmt.Fprintf(out, "| %s\n", strings.TrimSuffix(line, "\n"))
	}
	for line := range strings.Lines(stderr.String()) {
		fmt.Fprintf(out, "! %s\n", strings.TrimSuffix(line, "\n"))
	}
	if code != exitOK {
		fmt.Fprintf(out, "exit %d\n", code)
	}
}
