package top

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	apiv1 "github.com/shuntlb/shunt/api/v1"
)

// Ask requests the nodes' reports.
type Ask func(context.Context) (*apiv1.StatusResponse, error)

// Screen is the live view. It is a bubbletea model: its input is keys and reports, its output text.
type Screen struct {
	ask      Ask
	ctx      context.Context
	interval time.Duration
	width    int
	height   int

	view   View
	sorts  [4]int // column by view; 0 is the order of Rates
	paused bool
	skip   int // rows scrolled away

	last, now *apiv1.StatusResponse
	rates     Rates
	err       error
}

// NewScreen returns a screen that requests reports at an interval.
func NewScreen(ctx context.Context, ask Ask, interval time.Duration, view View) Screen {
	return Screen{ask: ask, ctx: ctx, interval: interval, view: view, width: 80, height: 24}
}

// Run shows the screen until q is pressed or ctx ends.
func (s Screen) Run(in io.Reader, out io.Writer) error {
	_, err := tea.NewProgram(s, tea.WithContext(s.ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithAltScreen(), tea.WithoutSignalHandler()).Run()
	if s.ctx.Err() != nil {
		return nil
	}
	return err
}

// answer is the result of Ask.
type answer struct {
	status *apiv1.StatusResponse
	err    error
}

// due means that the next request is due.
type due struct{}

// Init implements tea.Model.
func (s Screen) Init() tea.Cmd { return s.askNow }

func (s Screen) askNow() tea.Msg {
	status, err := s.ask(s.ctx)
	return answer{status, err}
}

func (s Screen) later() tea.Cmd {
	return tea.Tick(s.interval, func(time.Time) tea.Msg { return due{} })
}

// Update implements tea.Model.
func (s Screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case due:
		return s, s.askNow
	case answer:
		return s.take(m), s.later()
	case tea.KeyMsg:
		return s.keys(m)
	}
	return s, nil
}

// keys handles keys; several that were typed fast arrive as one message.
func (s Screen) keys(m tea.KeyMsg) (tea.Model, tea.Cmd) {
	if m.Type != tea.KeyRunes {
		return s.key(m.String())
	}
	for _, r := range m.Runes {
		next, cmd := s.key(string(r))
		if cmd != nil {
			return next, cmd
		}
		s = next.(Screen)
	}
	return s, nil
}

// take handles an answer.
func (s Screen) take(a answer) Screen {
	s.err = a.err
	if a.err != nil || s.paused {
		return s
	}
	s.last, s.now = s.now, a.status
	if s.last != nil {
		s.rates = Between(s.last, s.now)
	}
	return s
}

func (s Screen) key(key string) (tea.Model, tea.Cmd) {
	switch key {
	case "q", "ctrl+c", "esc":
		return s, tea.Quit
	case "1", "2", "3", "4":
		s.view, s.skip = View(key[0]-'1'), 0
	case "tab", "right":
		s.view, s.skip = (s.view+1)%View(len(Views)), 0
	case "shift+tab", "left":
		s.view, s.skip = (s.view+View(len(Views))-1)%View(len(Views)), 0
	case "s":
		s.sorts[s.view] = (s.sorts[s.view] + 1) % (len(s.rates.Table(s.view, "")[0]) + 1)
	case "p", " ":
		s.paused = !s.paused
	case "down", "j":
		s.skip++
	case "up", "k":
		s.skip = max(0, s.skip-1)
	case "pgdown":
		s.skip += s.rows()
	case "pgup":
		s.skip = max(0, s.skip-s.rows())
	}
	s.skip = min(s.skip, max(0, len(s.rates.Table(s.view, ""))-2))
	return s, nil
}

// rows returns the number of rows below the heading that fit.
func (s Screen) rows() int { return max(1, s.height-5) }

// sortedBy returns the name of the column that orders the view; empty: the busiest first.
func (s Screen) sortedBy() string {
	if s.sorts[s.view] == 0 {
		return ""
	}
	return s.rates.Table(s.view, "")[0][s.sorts[s.view]-1]
}

// View implements tea.Model.
func (s Screen) View() string {
	var out strings.Builder
	for i, name := range Views {
		if View(i) == s.view {
			name = "[" + name + "]"
		}
		fmt.Fprintf(&out, "%d %s  ", i+1, name)
	}
	state := "every " + s.interval.String()
	if s.paused {
		state = "paused"
	}
	if by := s.sortedBy(); by != "" {
		state += ", by " + strings.ToLower(by)
	}
	fmt.Fprintf(&out, "  %s\n", state)
	switch {
	case s.err != nil:
		fmt.Fprintf(&out, "%v\n\n", s.err)
	case s.last == nil:
		out.WriteString("waiting for a second report of the nodes\n\n")
	default:
		fmt.Fprintf(&out, "revision %d\n\n", s.now.GetRevision())
	}
	rows := s.rates.Table(s.view, s.sortedBy())
	end := min(len(rows), 1+s.skip+s.rows())
	shown := append([][]string{rows[0]}, rows[min(len(rows), 1+s.skip):end]...)
	WriteTable(&out, shown)
	if left := len(rows) - end; left > 0 {
		fmt.Fprintf(&out, "… %d more\n", left)
	}
	out.WriteString("\ntab view  s sort  p pause  ↑↓ scroll  q quit")
	return clip(out.String(), s.width)
}

// WriteTable writes rows in columns two spaces apart.
func WriteTable(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, c := range row {
			if c == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush()
}

// clip cuts lines to a width.
func clip(text string, width int) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if r := []rune(line); len(r) > width {
			lines[i] = string(r[:width])
		}
	}
	return strings.Join(lines, "\n")
}
