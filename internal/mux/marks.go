package mux

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/shuntlb/shunt/internal/health"
	"github.com/shuntlb/shunt/internal/lb"
)

// marksFile is the decision log in the run directory. Each line has the decisions in force for one
// endpoint and, if it is open, the ids of its members that are truly alive. The last line of an
// endpoint counts; a line without a newline does not.
const marksFile = "decisions"

// marksSlack is how many lines beyond two for each endpoint the file may have before it is
// rewritten.
const marksSlack = 4096

// Directories in which earlier versions kept one file for each endpoint: for those that fail open,
// with member ids, and for those that use backups.
const (
	formerOpenMarks   = "fail-open"
	formerBackupMarks = "backup"
)

// Keywords of a line.
const (
	markedOpen   = "fails-open"
	markedPanic  = "panics"
	markedBackup = "backups"
)

// marks are the decisions that outlive an agent, until the next boot, as the tables do. The tables
// alone do not show that members count as alive only because none is healthy.
type marks struct {
	dir string
	// set maps an endpoint's name to its line. Endpoints without a decision are not in it.
	set map[string]string
	// pending are lines to append to the file, lines is how many it has, and whole means that it
	// must be rewritten.
	pending bytes.Buffer
	lines   int
	whole   bool
	file    *os.File
}

// mark is the logged state of an endpoint.
type mark struct {
	health.Decision
	// alive are the members of an open endpoint that are alive.
	alive []uint16
}

// openMarks reads the decision log of a previous agent.
func openMarks(runDir string) (*marks, error) {
	m := &marks{dir: runDir, set: map[string]string{}}
	data, err := os.ReadFile(filepath.Join(runDir, marksFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read decisions: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		name, said, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case !strings.HasSuffix(line, "\n"):
		case said == "":
			delete(m.set, name)
		default:
			m.set[name] = said
		}
	}
	// Rewrite, because an appended line would continue an incomplete one.
	m.whole = len(data) > 0
	return m, m.takeFormer()
}

// takeFormer converts the files of an earlier version.
func (m *marks) takeFormer() error {
	for dir, word := range map[string]string{formerOpenMarks: markedOpen, formerBackupMarks: markedBackup} {
		path := filepath.Join(m.dir, dir)
		entries, err := os.ReadDir(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read decisions: %w", err)
		}
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(path, e.Name()))
			if err != nil {
				return fmt.Errorf("read decisions: %w", err)
			}
			m.set[e.Name()] = strings.Join(append(strings.Fields(m.set[e.Name()]), append([]string{word}, strings.Fields(string(content))...)...), " ")
		}
		m.whole = true
		if err := m.flush(); err != nil {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("forget decisions of a former version: %w", err)
		}
	}
	return nil
}

func markName(k lb.EndpointKey) string {
	return fmt.Sprintf("%d_%s_%d_%d_%d", k.VNI, k.VIP, k.Protocol, k.Port, k.PortEnd)
}

// read returns the logged state of an endpoint.
func (m *marks) read(k lb.EndpointKey) (out mark) {
	if len(m.set) == 0 {
		return out
	}
	for _, word := range strings.Fields(m.set[markName(k)]) {
		switch word {
		case markedOpen:
			out.FailOpen = true
		case markedPanic:
			out.Panic = true
		case markedBackup:
			out.Backup = true
		default:
			if id, err := strconv.ParseUint(word, 10, 16); err == nil {
				out.alive = append(out.alive, uint16(id))
			}
		}
	}
	return out
}

// say formats the state as the rest of a line; empty: no decision is in force.
func (w mark) say() string {
	var out []byte
	word := func(s string) {
		if len(out) > 0 {
			out = append(out, ' ')
		}
		out = append(out, s...)
	}
	if w.FailOpen {
		word(markedOpen)
	}
	if w.Panic {
		word(markedPanic)
	}
	if w.Backup {
		word(markedBackup)
	}
	for _, id := range w.alive {
		word(strconv.Itoa(int(id)))
	}
	return string(out)
}

// put adds a decision to the log; flush writes it. This happens before tables open an endpoint and
// after they close it, because a surplus entry only makes the next agent probe live members again,
// but a missing one makes dead members look alive.
func (m *marks) put(k lb.EndpointKey, w mark) {
	if w.Decision == (health.Decision{}) && len(m.set) == 0 {
		return
	}
	m.change(markName(k), w.say())
}

func (m *marks) change(name, said string) {
	if m.set[name] == said {
		return
	}
	if m.set[name] = said; said == "" {
		delete(m.set, name)
	}
	fmt.Fprintf(&m.pending, "%s %s\n", name, said)
	m.lines++
}

// flush writes all pending lines in one write.
func (m *marks) flush() error {
	if !m.whole && m.pending.Len() == 0 {
		return nil
	}
	if m.whole || m.file == nil || m.lines > 2*len(m.set)+marksSlack {
		return m.rewrite()
	}
	_, err := m.file.Write(m.pending.Bytes())
	m.pending.Reset()
	if err != nil {
		m.whole = true
		return fmt.Errorf("remember decisions: %w", err)
	}
	return nil
}

// rewrite replaces the file by one with a single line for each endpoint.
func (m *marks) rewrite() error {
	m.whole = true
	m.pending.Reset()
	for name, said := range m.set {
		fmt.Fprintf(&m.pending, "%s %s\n", name, said)
	}
	path := filepath.Join(m.dir, marksFile)
	err := os.WriteFile(path+".new", m.pending.Bytes(), 0o600)
	m.pending.Reset()
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("remember decisions: %w", err)
	}
	if m.file != nil {
		m.file.Close()
	}
	if m.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		m.file = nil
		return fmt.Errorf("remember decisions: %w", err)
	}
	m.whole, m.lines = false, len(m.set)
	return nil
}

// prune removes endpoints that are not in wanted.
func (m *marks) prune(wanted map[lb.EndpointKey]*group) {
	if len(m.set) == 0 {
		return
	}
	names := make(map[string]bool, len(wanted))
	for k := range wanted {
		names[markName(k)] = true
	}
	for name := range m.set {
		if !names[name] {
			m.change(name, "")
		}
	}
}
