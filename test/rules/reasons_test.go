package rules

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shuntlb/shunt/internal/top"
)

var update = flag.Bool("update", false, "write the generated columns of docs/reference-reasons.md anew")

const reasonsPage = "../../docs/reference-reasons.md"

// reasonRow is one row of docs/reference-reasons.md. Reason, meaning and, of packets counted in addition, end are generated from bpf/abi; the
// others are written by hand and kept.
type reasonRow struct{ reason, end, meaning, cause, cure string }

// Ends of packets that a row can have.
var ends = []string{"sent", "answered", "kernel", "dropped", "taken", inAddition, noPacket}

const (
	inAddition = "in addition"
	noPacket   = "no packet"
)

// reasonParts are the tables of the page: the enum that each is made of, and the reasons that an agent counts itself.
var reasonParts = []struct {
	title, file, enum, prefix, lead string
	agents                          []reasonRow
}{
	{title: "Muxes", file: "../../bpf/abi/reason.h", enum: "mux_reason", prefix: "MUX_REASON_"},
	{title: "Hosts", file: "../../bpf/abi/host.h", enum: "host_reason", prefix: "HOST_REASON_", agents: []reasonRow{
		{reason: "flow_abandoned", end: noPacket, meaning: "a sweep found a flow that its server gave up: five minutes of silence after unacknowledged data or a FIN"},
		{reason: "flow_expired", end: noPacket, meaning: "a sweep took a flow out, idle for too long"},
		{reason: "out_snat_expired", end: "dropped", meaning: "of a connection that a server opened: it waited 3 seconds with the agent, and no port was leased"},
	}},
	{title: "Hosts: handshakes of cookie form co", file: "../../bpf/abi/co.h", enum: "co_reason", prefix: "CO_REASON_", lead: "co_"},
}

// headerReasons reads an enum with the comment of each value.
func headerReasons(t *testing.T, file, enum, prefix, lead string) (rows []reasonRow) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, body, found := strings.Cut(string(text), "enum "+enum+" {")
	if !found {
		t.Fatalf("%s: no enum %s", file, enum)
	}
	body, _, _ = strings.Cut(body, "\n};")
	for _, m := range regexp.MustCompile(`(?s)`+prefix+`(\w+) = \d+,\s*/\*(.*?)\*/`).FindAllStringSubmatch(body, -1) {
		comment := strings.TrimSpace(regexp.MustCompile(`\s*\n\s*\*\s*`).ReplaceAllString(m[2], " "))
		row := reasonRow{reason: lead + strings.ToLower(m[1]), meaning: strings.ReplaceAll(comment, "|", `\|`)}
		for _, start := range []string{"counted beside", "counted in addition"} {
			if strings.HasPrefix(comment, start) {
				row.end, row.meaning = inAddition, strings.TrimPrefix(row.meaning, start+": ")
			}
		}
		if strings.HasPrefix(comment, "not a packet") {
			row.end, row.meaning = noPacket, strings.TrimPrefix(row.meaning, "not a packet: ")
		}
		rows = append(rows, row)
	}
	if declared := strings.Count(body, prefix) - 1; len(rows) != declared {
		t.Fatalf("%s: %d reasons with a comment, %d without %sMAX", file, len(rows), declared, prefix)
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

// TestReasonsPage keeps docs/reference-reasons.md equal to the reasons that the programs and agents count, and asks a cause and a cure of each.
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
		rows := append(headerReasons(t, part.file, part.enum, part.prefix, part.lead), part.agents...)
		if series[part.title[:5]] += len(rows); series[part.title[:5]] > 80 {
			t.Errorf("%s: more than 80 reasons: say so in the families of internal/metrics", part.title)
		}
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "## %s\n\n| reason | the packet is | meaning | usual cause | cure |\n|---|---|---|---|---|\n", part.title)
		for _, row := range rows {
			hand := written[part.title][row.reason]
			if row.end == "" {
				row.end = hand.end
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s |\n", row.reason, row.end, row.meaning, hand.cause, hand.cure)
			if !slices.Contains(ends, row.end) || hand.cause == "" || hand.cure == "" {
				t.Errorf("%s: %s: %s: write its end (one of %q), its usual cause and its cure", reasonsPage, part.title, row.reason, ends)
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

// TestDroppedReasons: `shunt top` calls those reasons of muxes drops that the page does.
func TestDroppedReasons(t *testing.T) {
	text, err := os.ReadFile(reasonsPage)
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range pageReasons(t, string(text))["Muxes"] {
		if top.Dropped(name) != (row.end == "dropped") {
			t.Errorf("%s: the page says %q, top.Dropped %v", name, row.end, top.Dropped(name))
		}
	}
}
