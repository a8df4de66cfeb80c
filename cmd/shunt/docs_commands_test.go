package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	codeBlock  = regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")
	inlineCode = regexp.MustCompile("(?s)`([^`]+)`")
	// commandStart finds the program at the start of a command: after the shell's operators,
	// assignments, or wrappers that run a command.
	commandStart = regexp.MustCompile(`(?m)(?:^|[;&|]|\$\(|\bsudo |\bexec |ExecStart=)\s*(?:\$ )?(?:[A-Za-z_]+=\S+ )*(?:\S*/)?shunt[ \t]+([a-z-][^\n]*)`)
)

// printed matches the text after the program's name in one of its messages: "apply: web.yaml:6:9:
// …".
var printed = regexp.MustCompile(`^[a-z-]+( [a-z-]+)?: `)

// words splits a command's arguments as a shell does, up to an operator, a redirection or a
// comment.
func words(line string) (out []string) {
	var word strings.Builder
	begun, quote := false, rune(0)
	end := func() {
		if begun {
			out = append(out, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ' || r == '\t':
			end()
		case strings.ContainsRune(";&)>", r), r == '|' && !begun, r == '#' && !begun, r == '<' && !begun:
			end()
			return out
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	end()
	return out
}

// bracketed matches an IPv6 address in the brackets that a port needs.
var bracketed = regexp.MustCompile(`^\[[0-9a-f:]+\](:\d+)?$`)

// concrete replaces notation of the pages: it takes the first of alternatives, "a|b", keeps
// optional parts without brackets, and cuts the arguments at "…".
func concrete(args []string, whole bool) ([]string, bool) {
	for i, a := range args {
		if a == "…" || a == "..." {
			return args[:i], false
		}
		first, _, _ := strings.Cut(a, "|")
		if !bracketed.MatchString(first) {
			first = strings.Trim(first, "[]")
		}
		args[i] = first
	}
	return args, whole
}

// tryCommand parses a command line as the program does, and runs nothing. It takes the first of
// alternatives, "a|b". whole also checks the number of arguments.
func tryCommand(args []string, whole bool) error {
	args, whole = concrete(args, whole)
	root := newRoot()
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.InitDefaultCompletionCmd(args...)
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if cmd.HasSubCommands() && !cmd.Runnable() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), rest[0])
	}
	cmd.InitDefaultHelpFlag()
	err = cmd.ParseFlags(rest)
	if !whole && len(args) > 0 && cmd.Flag(strings.TrimLeft(args[len(args)-1], "-")) != nil {
		return nil // the flag that the text is about, without a value
	}
	if err != nil {
		return err
	}
	if help, _ := cmd.Flags().GetBool("help"); help {
		return nil
	}
	if whole && cmd.Runnable() {
		return cmd.ValidateArgs(cmd.Flags().Args())
	}
	return nil
}

// docPages returns the user pages.
func docPages(t *testing.T) (pages []string) {
	t.Helper()
	pages = []string{"../../README.md"}
	err := filepath.WalkDir("../../docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestDocsNameCommandsThatExist parses every command line of the pages: in code blocks with all
// arguments, in running text as far as it is written.
func TestDocsNameCommandsThatExist(t *testing.T) {
	found := 0
	for _, page := range docPages(t) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
			joined := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(block[1], "")
			for _, m := range commandStart.FindAllStringSubmatch(joined, -1) {
				if printed.MatchString(m[1]) {
					continue
				}
				found++
				if err := tryCommand(words(m[1]), true); err != nil {
					t.Errorf("%s: shunt %s: %v", page, m[1], err)
				}
			}
		}
		for _, m := range inlineCode.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			line, ok := strings.CutPrefix(strings.Join(strings.Fields(m[1]), " "), "shunt ")
			if !ok {
				continue
			}
			found++
			if err := tryCommand(words(line), false); err != nil {
				t.Errorf("%s: `shunt %s`: %v", page, line, err)
			}
		}
	}
	if found < 300 {
		t.Errorf("%d command lines found: the pages have more", found)
	}
}

// managerCommands lists the commands that have no effect without a response of a manager or a file.
// They are safe to run here.
var managerCommands = []string{
	"access", "apply", "audit", "backup", "check", "delete", "describe", "diff", "drain", "get", "member", "release", "restore", "rotate", "token",
	"top", "trace", "undrain", "verify",
}

// runCommand runs a command line of a page without a manager or a file, and returns its exit code
// and message. It does not run commands of other kinds or of labs.
func runCommand(line string) (code int, message string, ran bool) {
	args, whole := concrete(words(line), true)
	if !whole || slices.Contains(args, "--lab") {
		return 0, "", false
	}
	if cmd, _, err := newRoot().Find(args); err != nil || !slices.Contains(managerCommands, strings.Fields(cmd.CommandPath() + " -")[1]) {
		return 0, "", false
	}
	var stderr strings.Builder
	code = run(args, strings.NewReader(""), io.Discard, &stderr)
	return code, stderr.String(), true
}

// TestDocsNameCommandsThatCanRun runs the command lines of the pages' blocks that call managers.
// Without a manager they fail, but none may fail as wrong usage, because commands check more than
// flag names, such as that one of several flags is set.
func TestDocsNameCommandsThatCanRun(t *testing.T) {
	lines := map[string]string{}
	for _, page := range docPages(t) {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range codeBlock.FindAllStringSubmatch(string(content), -1) {
			joined := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(block[1], "")
			for _, m := range commandStart.FindAllStringSubmatch(joined, -1) {
				if !printed.MatchString(m[1]) {
					lines[m[1]] = page
				}
			}
		}
	}
	t.Chdir(t.TempDir())
	t.Setenv(configVariable, filepath.Join(t.TempDir(), "none"))
	count := 0
	for line, page := range lines {
		code, message, ran := runCommand(line)
		if ran {
			count++
		}
		if code == exitUsage {
			t.Errorf("%s: shunt %s: %s", page, line, message)
		}
	}
	if count < 80 {
		t.Errorf("%d command lines ran: the pages have more", count)
	}
	for line, want := range map[string]int{
		"backup -f before.backup": exitUsage, "token create": exitUsage, "backup -f before.backup --plain": exitFailed, "get services": exitFailed,
	} {
		if code, message, ran := runCommand(line); !ran || code != want {
			t.Errorf("shunt %s: exit code %d (%s), expected %d", line, code, message, want)
		}
	}
}

// TestTryCommand checks that the page check refuses the command lines that the program would
// refuse.
func TestTryCommand(t *testing.T) {
	for line, good := range map[string]bool{
		"get services": true, "access revoke nodes/host1": true, "token create --node m2 --role manager > m2.token": true,
		"rotate keys VIP|--all": true, "get --help": true,
		"revoke nodes/host1": false, "access remove x": false, "token create --name x": false, "doctor mux --interface eth0": false,
		"access revoke": false, "manager --no-such-flag": false,
	} {
		if err := tryCommand(words(line), true); (err == nil) != good {
			t.Errorf("shunt %s: error %v, expected one: %v", line, err, !good)
		}
	}
}
