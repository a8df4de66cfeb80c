package lb_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/lb"
)

func TestNear(t *testing.T) {
	fields := []string{"name", "vip", "endpoints", "tunnelSources", "health", "weight", "drain", "drainTimeout"}
	for word, want := range map[string]string{
		"endpoint": "endpoints", "endpionts": "endpoints", "Endpoints": "endpoints", "tunnel_sources": "tunnelSources", "tunnel-source": "tunnelSources",
		"helth": "health", "wieght": "weight", "vips": "vip", "drain-timeout": "drainTimeout", "nmae": "name",
		"": "", "x": "", "backends": "", "healthchecks": "", "ip": "vip", "host": "",
	} {
		if got := lb.Near(word, fields); got != want {
			t.Errorf("Near(%q) = %q, want %q", word, got, want)
		}
	}
	if got := lb.MeantFor("helth", fields); got != "; did you mean health?" {
		t.Errorf("MeantFor: %q", got)
	}
	if got := lb.MeantFor("xyz", fields); got != "" {
		t.Errorf("MeantFor of no choice: %q", got)
	}
}

// TestNearOneEdit: Near finds a choice of four letters or more after one edit, unless another
// choice is as near.
func TestNearOneEdit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := []rune(rapid.StringMatching(`[a-z]{4,12}`).Draw(t, "word"))
		at := rapid.IntRange(0, len(word)-2).Draw(t, "at")
		wrong := append([]rune{}, word...)
		switch rapid.IntRange(0, 3).Draw(t, "edit") {
		case 0:
			wrong = append(wrong[:at], wrong[at+1:]...)
		case 1:
			wrong[at] = 'ß'
		case 2:
			wrong[at], wrong[at+1] = wrong[at+1], wrong[at]
		case 3:
			wrong = append(wrong[:at], append([]rune{'ß'}, wrong[at:]...)...)
		}
		if got := lb.Near(string(wrong), []string{"0123456789abc", string(word)}); got != string(word) {
			t.Errorf("Near(%q) = %q, want %q", string(wrong), got, string(word))
		}
	})
}
