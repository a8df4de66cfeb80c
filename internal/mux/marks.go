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

// marksFile in the run directory holds decisions of endpoints. Each line says of one which hold, and the ids of its members that are
// alive in truth when it is open; the last line of an endpoint counts, and a line without its end does not.
const marksFile = "decisions"

// marksSlack is how many lines the file may have beside two for each endpoint before it is written anew.
const marksSlack = 4096

// Directories in which agents before kept a file for each endpoint: of those that fail open with ids of members, of those whose
// backups take part.
const (
	formerOpenMarks   = "fail-open"
	formerBackupMarks = "backup"
)

// Words of a line.
const (
	markedOpen   = "fails-open"
	markedPanic  = "panics"
	markedBackup = "backups"
)

// marks are the decisions that outlive an agent, until the next boot, as the tables do. An agent that takes over tables
// cannot tell from them that members are called alive because none is.
type marks struct {
	dir string
	// set is what is said of endpoints, by name. Endpoints without a decision are not in it.
	set map[string]string
	// pending are lines that are not in the file yet, which has so many. whole: it is to be written anew.
	pending bytes.Buffer
	lines   int
	whole   bool
	file    *os.File
}

// mark is what is remembered of an endpoint.
type mark struct {
	health.Decision
	// alive are the members of an endpoint that is open which are alive.
	alive []uint16
}

// openMarks reads what an agent before left.
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
	// What this agent writes does not follow a line without its end.
	m.whole = len(data) > 0
	return m, m.takeFormer()
}

// takeFormer takes over the files of an agent of a former version.
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

// read tells what is marked.
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

// say is what a line says of an endpoint; empty: nothing holds.
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

// put marks a decision, which flush then keeps. That is before tables open and after they stopped to: a mark too many makes the
// next agent ask members again that are alive, one too few makes dead members look alive.
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

// flush writes what was put, all at once.
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

// rewrite makes the file one that says everything once.
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

// prune forgets what is marked of endpoints that wanted does not name.
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
