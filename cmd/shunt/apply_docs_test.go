package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// noAgents matches the warnings of a cluster without hosts, which the test prints and the page does
// not.
var noAgents = regexp.MustCompile(`(?m)^warning: .*: no agent at .*\n`)

// TestApplyDocs runs the commands of the section of docs/ops/apply.md about a program that sets
// weights. Each must print the output shown there. Files that the page shows are created.
func TestApplyDocs(t *testing.T) {
	const file, section = "../../docs/ops/apply.md", "\n## A program that sets weights\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(text), section)
	shown, _, _ = strings.Cut(shown, "\n## ")
	if !found {
		t.Fatalf("%s: no section %q", file, section)
	}
	p := newManagerProcess(t)
	p.start()
	service := strings.NewReplacer("s1", "web", "10.20.1.11", "10.20.2.11").Replace(testService(1))
	p.must(testNetwork+"---"+service, "apply", "-f", "-")
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("web5.yaml", strings.Replace(service, "port: 8080,", "port: 8080, weight: 5,", 1), 0o600)
	write("shunt", fmt.Sprintf("#!/bin/sh\n%s=$(printf '%%s\\n' --config %s/admin.yaml \"$@\") exec %s\n", commandVariable, p.data, os.Args[0]), 0o700)
	commands := 0
	for i, block := range strings.Split(shown, "```\n") {
		if i%2 == 0 {
			continue
		}
		for _, command := range strings.Split("\n"+block, "\n$ ")[1:] {
			line, want, _ := strings.Cut(command, "\n")
			want = strings.TrimSuffix(want, "\n")
			if name, isFile := strings.CutPrefix(line, "cat "); isFile {
				write(name, want+"\n", 0o600)
			}
			sh := exec.Command("sh", "-c", line)
			sh.Dir, sh.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			got, _ := sh.CombinedOutput()
			if commands++; strings.TrimSuffix(noAgents.ReplaceAllString(string(got), ""), "\n") != want {
				t.Errorf("$ %s\n%s\nwant:\n%s", line, got, want)
			}
		}
	}
	if commands != 7 {
		t.Errorf("%d commands were found", commands)
	}
}
