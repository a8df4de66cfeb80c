package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// markdown lists the repository's pages by their path from the root.
func markdown(t *testing.T) (pages []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if !d.IsDir() && filepath.Ext(path) == ".md" {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			pages = append(pages, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 30 {
		t.Fatalf("%d pages found: the rule would check little", len(pages))
	}
	return pages
}

var (
	fence      = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	codeSpan   = regexp.MustCompile("`[^`\n]+`")
	link       = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	namedPage  = regexp.MustCompile("`([A-Za-z0-9_./-]+\\.md)(#[^`]*)?`")
	targetPath = regexp.MustCompile(`\bdocs/[A-Za-z0-9_./-]+\.(?:md|yaml|yml|json|lua)\b`)
)

// anchors returns the ids that GitHub gives to a page's headings.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		words := link.ReplaceAllStringFunc(m[1], func(s string) string { return s[1:strings.Index(s, "]")] })
		var id strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(words)) {
			switch {
			case r == ' ':
				id.WriteByte('-')
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				id.WriteRune(r)
			}
		}
		name := id.String()
		for n := 1; out[name]; n++ {
			name = id.String() + "-" + string(rune('0'+n))
		}
		out[name] = true
	}
	return out
}

// brokenLinks returns the references of the page at path that do not exist: targets of links,
// anchors in them, and pages named in code.
func brokenLinks(path, text string, read func(string) (string, error)) (broken []string) {
	dir := filepath.Dir(path)
	prose := fence.ReplaceAllString(text, "")
	for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(prose, ""), -1) {
		file, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(file, "://") || strings.HasPrefix(file, "mailto:") {
			continue
		}
		target := text
		if file != "" {
			var err error
			if target, err = read(filepath.Join(dir, file)); err != nil {
				broken = append(broken, m[1])
				continue
			}
		}
		if anchor != "" && !anchors(target)[anchor] {
			broken = append(broken, m[1])
		}
	}
	for _, m := range namedPage.FindAllStringSubmatch(prose, -1) {
		if strings.HasPrefix(m[1], "/") {
			continue
		}
		_, beside := read(filepath.Join(dir, m[1]))
		if _, above := read(m[1]); beside != nil && above != nil {
			broken = append(broken, m[0])
		}
	}
	return broken
}

// readTarget reads a page. For other files and directories it only checks that they exist.
func readTarget(path string) (string, error) {
	path = filepath.Join(root, path)
	if filepath.Ext(path) != ".md" {
		_, err := os.Stat(path)
		return "", err
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// TestLinks checks that every relative link of the pages leads to a file and a heading that exist.
func TestLinks(t *testing.T) {
	found := 0
	for _, page := range markdown(t) {
		text, err := readTarget(page)
		if err != nil {
			t.Fatal(err)
		}
		found += len(link.FindAllString(text, -1))
		for _, target := range brokenLinks(page, text, readTarget) {
			t.Errorf("%s: %s leads nowhere", page, target)
		}
	}
	if found < 60 {
		t.Errorf("%d links found: the pages have more", found)
	}
}

// TestBrokenLinks checks that the check finds exactly the missing files, headings and pages.
func TestBrokenLinks(t *testing.T) {
	files := map[string]string{"docs/b.md": "# B\n\n## How it works, in two\n", "docs/ops/c.md": "# C"}
	read := func(path string) (string, error) {
		if text, ok := files[path]; ok {
			return text, nil
		}
		return "", fs.ErrNotExist
	}
	for line, good := range map[string]bool{
		"[b](b.md)": true, "[b](b.md#how-it-works-in-two)": true, "[c](ops/c.md#c)": true, "[here](#a)": true, "[x](https://x.org/y#z)": true, "`b.md`": true,
		"`docs/ops/c.md`": true, "`[n](no.md)`": true, "```\n[n](no.md)\n```": true,
		"[n](no.md)": false, "[b](b.md#how-it-works)": false, "[here](#b)": false, "`no.md`": false, "`ops/no.md`": false,
	} {
		if broken := brokenLinks("docs/a.md", "# A\n\n"+line+"\n", read); (len(broken) == 0) != good {
			t.Errorf("%s: broken %q", line, broken)
		}
	}
}

// TestPagesAreListed checks that README.md leads to every page of docs and docs/ops.
func TestPagesAreListed(t *testing.T) {
	readme, err := readTarget("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range markdown(t) {
		if dir := filepath.Dir(page); (dir == "docs" || dir == "docs/ops") && !strings.Contains(readme, "]("+page+")") {
			t.Errorf("README.md has no link to %s", page)
		}
	}
}

// TestCodeNamesPagesThatExist checks that messages of commands and comments name no missing page.
func TestCodeNamesPagesThatExist(t *testing.T) {
	found := 0
	for _, dir := range []string{"api", "bpf", "cmd", "internal", "pkg", "packaging", "scripts", "test", "docs"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch filepath.Ext(path) {
			case ".go", ".h", ".c", ".proto", ".yaml", ".yml", ".json", ".service", ".sh", ".txt":
			default:
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, name := range targetPath.FindAllString(string(text), -1) {
				found++
				if _, err := readTarget(name); err != nil && path != filepath.Join(root, "test/rules/links_test.go") {
					t.Errorf("%s names %s: there is no such file", path, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 50 {
		t.Errorf("%d names found: the code has more", found)
	}
}
