package textdiff

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestUnified(t *testing.T) {
	var a, b []string
	for i := range 20 {
		a = append(a, fmt.Sprint(i))
	}
	b = append(b, a...)
	b[1] = "one"
	b = append(b[:15], b[16:]...)
	const want = `--- old
+++ new
@@ -1,5 +1,5 @@
 0
-1
+one
 2
 3
 4
@@ -13,7 +13,6 @@
 12
 13
 14
-15
 16
 17
 18
`
	if got := Unified("old", "new", text(a), text(b)); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestUnifiedWhole(t *testing.T) {
	if got, want := Unified("/dev/null", "new", "", "a\nb\n"), "--- /dev/null\n+++ new\n@@ -0,0 +1,2 @@\n+a\n+b\n"; got != want {
		t.Errorf("created: %q", got)
	}
	if got, want := Unified("old", "/dev/null", "a\n", ""), "--- old\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-a\n"; got != want {
		t.Errorf("deleted: %q", got)
	}
	if got := Unified("old", "new", "a\n", "a\n"); got != "" {
		t.Errorf("equal: %q", got)
	}
}

// TestUnifiedApplies: the difference, applied to the one text, makes the other; nothing is marked that need not be.
func TestUnifiedApplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 30)
		from, to := lines.Draw(t, "from"), lines.Draw(t, "to")
		diff := Unified("from", "to", text(from), text(to))
		if got := apply(t, from, diff); text(got) != text(to) {
			t.Fatalf("applied:\n%s\nwant:\n%s\ndiff:\n%s", text(got), text(to), diff)
		}
		marked := strings.Count("\n"+diff, "\n-") + strings.Count("\n"+diff, "\n+")
		if diff != "" {
			marked -= 2 // the heading
		}
		if want := len(from) + len(to) - 2*longestCommon(from, to); marked != want {
			t.Fatalf("%d lines marked, %d would do:\n%s", marked, want, diff)
		}
	})
}

// apply is a naive patch.
func apply(t *rapid.T, from []string, diff string) []string {
	var out []string
	at := 0
	for line := range strings.Lines(diff) {
		line = strings.TrimSuffix(line, "\n")
		var first, count int
		switch {
		case strings.HasPrefix(line, "--- "), strings.HasPrefix(line, "+++ "):
		case strings.HasPrefix(line, "@@"):
			if _, err := fmt.Sscanf(line, "@@ -%d,%d", &first, &count); err != nil {
				t.Fatal(err)
			}
			if count > 0 {
				first--
			}
			out = append(out, from[at:first]...)
			at = first
		case line[0] == '+':
			out = append(out, line[1:])
		default:
			if from[at] != line[1:] {
				t.Fatalf("line %d is %q, the difference says %q", at, from[at], line)
			}
			if line[0] == ' ' {
				out = append(out, from[at])
			}
			at++
		}
	}
	return append(out, from[at:]...)
}

// longestCommon is the naive recurrence.
func longestCommon(a, b []string) int {
	best := make([]int, len(b)+1)
	for _, x := range a {
		diagonal := 0
		for j, y := range b {
			above := best[j+1]
			if x == y {
				best[j+1] = diagonal + 1
			} else {
				best[j+1] = max(above, best[j])
			}
			diagonal = above
		}
	}
	return best[len(b)]
}

func text(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestLongLists: a few changes far apart in a long list are a few hunks.
func TestLongLists(t *testing.T) {
	var from, to strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&from, "- %d\n", i)
		switch i {
		case 10, 150_000:
		case 60_000:
			fmt.Fprintf(&to, "- new\n- %d\n", i)
		default:
			fmt.Fprintf(&to, "- %d\n", i)
		}
	}
	got := Unified("a", "b", from.String(), to.String())
	if strings.Count(got, "@@ -") != 3 || strings.Count(got, "\n-") != 2 || strings.Count(got, "\n+") != 2 {
		t.Errorf("%.2000s", got)
	}
}
