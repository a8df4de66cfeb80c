package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shuntlb/shunt/internal/convert"
)

// TestVerdictOfOpinions checks that muxes decide, and hosts when every mux reports unknown. A held
// verdict counts only if no node has a newer one.
func TestVerdictOfOpinions(t *testing.T) {
	words := []string{convert.Healthy, convert.Unhealthy, convert.Unknown, convert.Damped, convert.Held}
	rapid.Check(t, func(t *rapid.T) {
		count := map[string]map[string]int{"mux": {}, "host": {}}
		var all []healthOpinion
		for range rapid.IntRange(0, 5).Draw(t, "opinions") {
			o := healthOpinion{Role: rapid.SampledFrom([]string{"mux", "host"}).Draw(t, "role"), Verdict: rapid.SampledFrom(words).Draw(t, "verdict")}
			count[o.Role][o.Verdict]++
			all = append(all, o)
		}
		want := convert.Unknown
		for _, role := range []string{"host", "mux"} {
			n := count[role]
			bad := n[convert.Unhealthy] + n[convert.Damped]
			switch {
			case n[convert.Healthy] > 0 && bad > 0:
				want = convert.Mixed
			case n[convert.Healthy] > 0:
				want = convert.Healthy
			case n[convert.Damped] > 0:
				want = convert.Damped
			case bad > 0:
				want = convert.Unhealthy
			case n[convert.Held] > 0:
				want = convert.Held
			}
		}
		if got := verdictOf(all); got != want {
			t.Fatalf("%v come to %s, want %s", all, got, want)
		}
	})
}

// TestHealthChangesAreTold checks that the printer prints the initial backends, then each change of
// a verdict or of the nodes that have it, and removed backends.
func TestHealthChangesAreTold(t *testing.T) {
	record := func(dip, verdict, check string) healthRecord {
		r := healthRecord{
			endpointKey: endpointKey{"web", "203.0.113.10", "tcp", 80, 0}, DIP: dip, DIPPort: 8080, LastCheck: check, Checks: []string{},
			Nodes: []healthOpinion{{Node: "mux1", Role: "mux", Verdict: verdict, LastCheck: check}},
		}
		r.Verdict = verdictOf(r.Nodes)
		return r
	}
	steps := [][]healthRecord{
		{record("10.0.0.1", convert.Healthy, "status 200"), record("10.0.0.2", convert.Healthy, "status 200")},
		{record("10.0.0.1", convert.Healthy, "status 204"), record("10.0.0.2", convert.Unhealthy, "status 503")},
		{record("10.0.0.1", convert.Healthy, "status 204")},
	}
	for format, want := range map[format][]string{
		formatTable: {"EVENT SINCE VERDICT SERVICE ENDPOINT BACKEND BY LAST-CHECK",
			"upserted - healthy web tcp/203.0.113.10:80 10.0.0.1:8080 mux1 status 200", "upserted - healthy web tcp/203.0.113.10:80 10.0.0.2:8080 mux1 status 200",
			"upserted - unhealthy web tcp/203.0.113.10:80 10.0.0.2:8080 mux1 status 503", "deleted - unhealthy web tcp/203.0.113.10:80 10.0.0.2:8080 mux1 status 503"},
		formatJSON: {`"event":"upserted" 10.0.0.1`, `"event":"upserted" 10.0.0.2`, `"event":"upserted" 10.0.0.2`, `"event":"deleted" 10.0.0.2`},
		formatYAML: {"event: upserted 10.0.0.1", "event: upserted 10.0.0.2", "event: upserted 10.0.0.2", "event: deleted 10.0.0.2"},
	} {
		var out strings.Builder
		p := healthPrinter{w: &out, format: format, told: map[string]*healthRecord{}}
		for _, s := range steps {
			if err := p.print(s); err != nil {
				t.Fatal(err)
			}
		}
		parts := strings.Split(strings.TrimSpace(out.String()), "\n")
		if format == formatYAML {
			parts = strings.Split(strings.TrimPrefix(out.String(), "---\n"), "---\n")
		}
		if len(parts) != len(want) {
			t.Fatalf("%s: %q, want %d parts", format, parts, len(want))
		}
		for i, part := range parts {
			if format == formatTable {
				if got := strings.Join(strings.Fields(part), " "); got != want[i] {
					t.Errorf("table: %q, want %q", got, want[i])
				}
				continue
			}
			at := strings.LastIndexByte(want[i], ' ')
			if !strings.Contains(part, want[i][:at]) || !strings.Contains(part, want[i][at+1:]) {
				t.Errorf("%s: %q, want %q", format, part, want[i])
			}
		}
	}
}

func TestTookText(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 812345: "812µs", 1234567: "1.23ms", 12345678: "12.3ms", 500012345: "500ms", 1234567890: "1.23s"} {
		if got := tookText(d); got != want {
			t.Errorf("%s: %s, want %s", fmt.Sprint(int64(d)), got, want)
		}
	}
}

// TestHostSaysWhy checks that the reason is the host's check result if muxes follow the host, and
// the mux's own if the mux found the failure itself.
func TestHostSaysWhy(t *testing.T) {
	of := func(host string) healthRecord {
		r := healthRecord{Nodes: []healthOpinion{
			{Node: "mux1", Role: "mux", Verdict: convert.Unhealthy, LastCheck: "its host says that it is dead"},
			{Node: "host1", Role: "host", Verdict: host, LastCheck: "connection refused"},
		}}
		r.Verdict = verdictOf(r.Nodes)
		r.explain()
		return r
	}
	for host, want := range map[string]string{convert.Unhealthy: "host1: connection refused", convert.Healthy: "its host says that it is dead"} {
		if r := of(host); r.LastCheck != want {
			t.Errorf("host %s: because %q, want %q", host, r.LastCheck, want)
		}
	}
}
