package rules

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/dataplane"
)

var update = flag.Bool("update", false, "write the generated columns of docs/reference/reasons.md anew")

const reasonsPage = "../../docs/reference/reasons.md"

// reasonRow is one row of docs/reference/reasons.md. Reason, class and meaning are generated from
// bpf/abi. The others are written by hand and kept.
type reasonRow struct{ reason, class, meaning, cause, cure string }

// reasonParts are the tables of the page: the enum of each, and the reasons that an agent counts
// itself.
var reasonParts = []struct {
	title, file, prefix, lead string
	agents                    []reasonRow
}{
	{title: "Muxes", file: "../../bpf/abi/reason.h", prefix: "MUX_REASON_"},
	{title: "Hosts", file: "../../bpf/abi/host.h", prefix: "HOST_REASON_", agents: []reasonRow{
		{reason: "flow_abandoned", class: string(dataplane.ClassOf("host", "flow_abandoned")), meaning: "not a packet: a sweep found a flow that its server gave up: five minutes of silence after unacknowledged data or a FIN"},
		{reason: "flow_expired", class: string(dataplane.ClassOf("host", "flow_expired")), meaning: "not a packet: a sweep took a flow out, idle for too long"},
		{reason: "out_snat_expired", class: string(dataplane.ClassOf("host", "out_snat_expired")), meaning: "of a connection that a server opened: it waited 3 seconds with the agent, and no port was leased"},
	}},
	{title: "Hosts: handshakes of cookie form co", file: "../../bpf/abi/co.h", prefix: "CO_REASON_", lead: "co_"},
}

// headerReasons reads a list of reasons, PREFIX…S(R), with the comment of each.
func headerReasons(t *testing.T, file, prefix, lead string) (rows []reasonRow) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	list := "#define " + strings.TrimSuffix(prefix, "_") + "S(R)"
	_, body, found := strings.Cut(string(text), list)
	if !found {
		t.Fatalf("%s: no %s", file, list)
	}
	body, _, _ = strings.Cut(body, "\n\n")
	for _, m := range regexp.MustCompile(`(?s)/\*(.*?)\*/ \\\n\s*R\(`+prefix+`(\w+), \d+, (\w+)\)`).FindAllStringSubmatch(body, -1) {
		meaning := strings.TrimSpace(regexp.MustCompile(`\s*\\\n\s*\*\s*`).ReplaceAllString(m[1], " "))
		rows = append(rows, reasonRow{reason: lead + strings.ToLower(m[2]), class: strings.ToLower(m[3]), meaning: strings.ReplaceAll(meaning, "|", `\|`)})
	}
	if declared := strings.Count(body, "R("+prefix); len(rows) != declared {
		t.Fatalf("%s: %d reasons with a comment, %d in the list", file, len(rows), declared)
	}
	return rows
}

// pageReasons reads the rows of the page by its tables' titles.
func pageReasons(t *testing.T, text string) map[string]map[string]reasonRow {
	t.Helper()
	out := map[string]map[string]reasonRow{}
	for _, section := range strings.Split(text, "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		rows := map[string]reasonRow{}
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "| `") {
				continue
			}
			cells := strings.Split(strings.TrimSpace(line), " | ")
			if len(cells) != 5 {
				t.Fatalf("%s: %d cells, want 5: %s", reasonsPage, len(cells), line)
			}
			name := strings.Trim(cells[0], "| `")
			rows[name] = reasonRow{name, cells[1], cells[2], cells[3], strings.TrimSpace(strings.TrimSuffix(cells[4], "|"))}
		}
		out[title] = rows
	}
	return out
}

// TestReasonsPage keeps docs/reference/reasons.md equal to the reasons that the programs and agents
// count, and requires a cause and a cure for each.
func TestReasonsPage(t *testing.T) {
	const marker = "<!-- reasons -->\n"
	text, err := os.ReadFile(reasonsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, tables, found := strings.Cut(string(text), marker)
	if !found {
		t.Fatalf("%s: no line %q", reasonsPage, marker)
	}
	written := pageReasons(t, "\n"+tables)
	var out strings.Builder
	series := map[string]int{}
	for i, part := range reasonParts {
		rows := append(headerReasons(t, part.file, part.prefix, part.lead), part.agents...)
		if series[part.title[:5]] += len(rows); series[part.title[:5]] > 80 {
			t.Errorf("%s: more than 80 reasons: say so in the families of internal/metrics", part.title)
		}
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "## %s\n\n| reason | class | meaning | usual cause | cure |\n|---|---|---|---|---|\n", part.title)
		for _, row := range rows {
			hand := written[part.title][row.reason]
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s |\n", row.reason, row.class, row.meaning, hand.cause, hand.cure)
			if hand.cause == "" || hand.cure == "" {
				t.Errorf("%s: %s: %s: write its usual cause and its cure", reasonsPage, part.title, row.reason)
			}
		}
	}
	if *update {
		if err := os.WriteFile(reasonsPage, []byte(head+marker+out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if tables != out.String() {
		t.Errorf("%s is behind bpf/abi: run go test ./test/rules -run Reasons -update", reasonsPage)
	}
}
