package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestReference checks that the commands in docs/reference.md equal the command tree.
func TestReference(t *testing.T) {
	const file, marker = "../../docs/reference.md", "<!-- commands -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	written, got, found := strings.Cut(string(text), marker)
	if !found {
		t.Fatalf("%s: no line %q", file, marker)
	}
	var out strings.Builder
	for _, cmd := range newRoot().Commands() {
		describeCommand(&out, cmd)
	}
	if *update {
		if err := os.WriteFile(file, []byte(written+marker+out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != out.String() {
		t.Errorf("%s is behind the commands: run go test ./cmd/shunt -run Reference -update", file)
	}
}

// describeCommand writes a command, or those below it.
func describeCommand(out *strings.Builder, cmd *cobra.Command) {
	if !cmd.IsAvailableCommand() || cmd.Name() == "help" || cmd.Name() == "completion" {
		return
	}
	defer func() {
		for _, child := range cmd.Commands() {
			describeCommand(out, child)
		}
	}()
	if cmd.HasSubCommands() && len(strings.Fields(cmd.Use)) == 1 {
		return // it prints its help
	}
	fmt.Fprintf(out, "\n### %s\n\n`%s`: %s.\n", cmd.CommandPath(), strings.TrimSuffix(cmd.UseLine(), " [flags]"), strings.TrimSuffix(cmd.Short, "."))
	if cmd.Long != "" {
		fmt.Fprintf(out, "\n%s\n", cmd.Long)
	}
	if cmd.LocalFlags().HasAvailableFlags() {
		out.WriteString("\n| flag | meaning | default |\n|---|---|---|\n")
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { describeFlag(out, f) })
	}
	if cmd.Example != "" {
		fmt.Fprintf(out, "\n```sh\n%s\n```\n", unindent(cmd.Example))
	}
}

func describeFlag(out *strings.Builder, f *pflag.Flag) {
	if f.Hidden || f.Name == "help" {
		return
	}
	name := "`--" + f.Name + "`"
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	value := ""
	if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
		value = "`" + f.DefValue + "`"
	}
	_, usage := pflag.UnquoteUsage(f)
	fmt.Fprintf(out, "| %s | %s | %s |\n", name, strings.ReplaceAll(usage, "|", `\|`), value)
}

// unindent removes the two spaces that help prints before examples.
func unindent(example string) string {
	var out strings.Builder
	for line := range strings.Lines(example) {
		out.WriteString(strings.TrimPrefix(line, "  "))
	}
	return strings.TrimRight(out.String(), "\n")
}
