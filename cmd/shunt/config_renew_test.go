package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEditedConfig checks that the texts of a client configuration are replaced and the rest stays.
// A file whose fields do not begin lines is refused and stays unchanged.
func TestEditedConfig(t *testing.T) {
	texts := map[string][]byte{"ca": []byte("new ca\n"), "key": []byte("new key\n")}
	for name, c := range map[string]struct{ content, want, refusal string }{
		"blocks": {
			content: "# mine\nserver: https://127.0.0.1:1\nca: |\n  old\n\n  old\ncert: |\n  kept\n\"key\": old\n",
			want:    "# mine\nserver: https://127.0.0.1:1\ncert: |\n  kept\nca: |\n  new ca\nkey: |\n  new key\n",
		},
		"JSON": {content: `{"server": "https://127.0.0.1:1", "ca": "old", "key": "old"}`, refusal: "each of its fields must begin a line"},
		"JSON of lines": {
			content: "{\n  \"server\": \"https://127.0.0.1:1\",\n  \"ca\": \"old\"\n}\n", refusal: "each of its fields must begin a line",
		},
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		want := c.want
		if err := replaceInConfig(file, texts); c.refusal == "" && err != nil || c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
		if c.refusal != "" {
			want = c.content
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: the file has %q (%v), want %q", name, got, err, want)
		}
	}
}
