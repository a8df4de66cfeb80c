package lab

import (
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// Screen prints a demo: with a live line on a terminal, plain lines elsewhere.
type Screen struct {
	out   io.Writer
	live  bool
	width int // of the terminal, in columns
}

// NewScreen returns a Screen that prints to out.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{out: out}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			s.live, s.width = true, int(size.Col)
		}
	}
	return s
}

// eraseLine returns to the first column and clears the line (ECMA-48).
const eraseLine = "\r\x1b[K"

// Line prints one line.
func (s *Screen) Line(format string, args ...any) {
	if s.live {
		fmt.Fprint(s.out, eraseLine)
	}
	fmt.Fprintf(s.out, format+"\n", args...)
}

// Event prints the heading of an event.
func (s *Screen) Event(name string) { s.Line("\n▶ %s", name) }

// Live shows the running totals: the responses by server and the packets by mux. Off a terminal it
// prints only the last totals of a window.
func (s *Screen) Live(r Report, muxes map[string]uint64, last bool) {
	text := fmt.Sprintf("  %d sent, %d failed · answered: %s · packets by mux: %s", r.Sent, r.Failed, shares(r.Servers), shares(muxes))
	switch {
	case last:
		s.Line("%s", text)
	case s.live:
		fmt.Fprint(s.out, eraseLine+s.fit(text))
	}
}

// fit cuts a line that the terminal would wrap, because a wrapped line cannot be repainted.
func (s *Screen) fit(text string) string {
	if runes := []rune(text); s.width > 0 && len(runes) >= s.width {
		return string(runes[:s.width-1])
	}
	return text
}

// Row prints the result of one event.
func (s *Screen) Row(o Outcome) {
	faults := ""
	if len(o.Report.Faults) > 0 {
		faults = " (" + shares(o.Report.Faults) + ")"
	}
	s.Line("  %d requests, %d failed%s, longest gap %d ms: %s", o.Report.Sent, o.Report.Failed, faults, o.Report.Gap.Milliseconds(), verdict(o))
}

// Table prints all rows and the verdict.
func (s *Screen) Table(rows []Outcome) {
	s.Line("")
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "EVENT\tREQUESTS\tFAILED\tLONGEST GAP\tRULE\tRESULT")
	failed := 0
	for _, o := range rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d ms\t%s\t%s\n", o.Event, o.Report.Sent, o.Report.Failed, o.Report.Gap.Milliseconds(), o.Rule, verdict(o))
		if o.Broken != "" {
			failed++
		}
	}
	w.Flush()
	s.Line("A request is a new TCP connection and one HTTP GET through the VIP; it fails without an answer within %d ms.", demoTimeout.Milliseconds())
	s.Line("The gap is the longest time without service: silence, or from the first to the last failed request, if longer.")
	if failed > 0 {
		s.Line("\nVERDICT: FAIL (%d of %d rules broken); with --keep the lab stays up, and its logs", failed, len(rows))
		return
	}
	s.Line("\nVERDICT: PASS (%d of %d rules held)", len(rows), len(rows))
}

func verdict(o Outcome) string {
	if o.Broken != "" {
		return "FAIL: " + o.Broken
	}
	return "pass"
}

// shares lists counts by name.
func shares[N int | uint64](counts map[string]N) string {
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	sort.Strings(names)
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%s %d", name, counts[name])
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
