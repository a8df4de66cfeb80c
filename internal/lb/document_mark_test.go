package lb

import (
	"strings"
	"testing"
)

// TestMarksOfFilesPutTogether: a byte order mark and a %YAML directive may begin each document;
// elsewhere they have no meaning.
func TestMarksOfFilesPutTogether(t *testing.T) {
	const tenant, other = "kind: Tenant\nname: a\n", "kind: Tenant\nname: b\n"
	for name, text := range map[string]string{
		"mark":                   "\ufeff" + tenant + "---\n" + other,
		"mark behind a marker":   tenant + "---\n\ufeff" + other,
		"mark before a marker":   tenant + "---\n\ufeff---\n" + other,
		"directive":              "%YAML 1.2\n---\n" + tenant + "---\n" + other,
		"directive in the midst": tenant + "...\n%YAML 1.1\n---\n" + other,
	} {
		found, err := ParseDocuments(strings.NewReader(text), "x.yaml", Whole)
		if err != nil || len(found) != 2 {
			t.Errorf("%s: %d objects, error %v", name, len(found), err)
		}
	}
	if _, err := ParseDocuments(strings.NewReader("%YAML 2.0\n---\n"+tenant), "x.yaml", Whole); err == nil {
		t.Error("a directive of another version was accepted")
	}
}
