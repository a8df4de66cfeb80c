package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeBlock  = regexp.MustCompile("(?ms)^ *```[a-z]*\n(.*?)^ *```")
	inlineCode = regexp.MustCompile("(?s)`([^`]+)`")
	// commandStart finds the program at the begin of a command: after the shell's operators, assignments, or wrappers that run a command.
	commandStart = regexp.MustCompile(`(?m)(?:^|[;&|]|\$\(|\bsudo |\bexec |ExecStart=)\s*(?:\$ )?(?:[A-Za-z_]+=\S+ )*(?:\S*/)?shunt[ \t]+([a-z-][^\n]*)`)
)

// printed is what follows the program's name in a message of its: "apply: web.yaml:6:9: …".
var printed = regexp.MustCompile(`^[a-z-]+( [a-z-]+)?: `)

// words splits a command's arguments as a shell does, up to an operator, a redirection or a comment.
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

// tryCommand parses a command line as the program does, and runs nothing. Of alternatives, "a|b", the first counts; whole also checks the
// number of arguments.
func tryCommand(args []string, whole bool) error {
	for i, a := range args {
		first, _, _ := strings.Cut(a, "|")
		args[i] = strings.Trim(first, "[]")
		if a == "…" || a == "..." {
			args, whole = args[:i], false
			break
		}
	}
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

// docPages are the pages for users.
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

// TestDocsNameCommandsThatExist parses every command line of the pages: in blocks with all arguments, in running text as far as it is written.
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

// TestTryCommand: the check of the pages refuses what the program would refuse.
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
