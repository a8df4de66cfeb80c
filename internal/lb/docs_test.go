package lb_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/lb"
)

// fence is a block of YAML in Markdown, at any indentation.
var fence = regexp.MustCompile("(?ms)^([ \t]*)```ya?ml\n(.*?)^[ \t]*```$")

// TestDocumentation parses every object in the documentation. YAML without a kind is not an object:
// a client configuration, a lab.
func TestDocumentation(t *testing.T) {
	const root = "../.."
	var files []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "docs/examples/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	snippets := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, snippet := range objectSnippets(file, string(text)) {
			snippets++
			if _, err := lb.Parse(strings.NewReader(snippet), file); err != nil {
				t.Errorf("%v in:\n%s", err, snippet)
			}
		}
	}
	if snippets == 0 {
		t.Error("no snippets found")
	}
}

// objectSnippets returns the pieces of YAML in a file that contain objects.
func objectSnippets(file, text string) []string {
	if strings.HasSuffix(file, ".yaml") {
		return []string{text}
	}
	var out []string
	for _, match := range fence.FindAllStringSubmatch(text, -1) {
		indent, body := match[1], match[2]
		var snippet strings.Builder
		for line := range strings.Lines(body) {
			snippet.WriteString(strings.TrimPrefix(line, indent))
		}
		if strings.Contains("\n"+snippet.String(), "\nkind:") {
			out = append(out, snippet.String())
		}
	}
	return out
}
