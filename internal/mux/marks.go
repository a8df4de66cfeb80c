package mux

import (
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

// Directories in the run directory: a file for each endpoint of which a decision holds. Those of one that fails open or panics list
// the ids of the members that are alive in truth; those alive that an endpoint which fails open has take no new flows.
const (
	failOpenMarks = "fail-open"
	panicMarks    = "panic"
	backupMarks   = "backup"
)

// marks are the decisions that outlive an agent, until the next boot, as the tables do. An agent that takes over tables
// cannot tell from them that members are called alive because none is.
type marks struct {
	dir string
	// set are the files' contents, by directory and name.
	set map[string]map[string]string
}

// mark is what is remembered of an endpoint.
type mark struct {
	health.Decision
	// alive are the members of an endpoint that is open which are alive.
	alive []uint16
}

// openMarks makes the directories and reads what an agent before left.
func openMarks(runDir string) (*marks, error) {
	m := &marks{dir: runDir, set: map[string]map[string]string{}}
	for _, kind := range []string{failOpenMarks, panicMarks, backupMarks} {
		m.set[kind] = map[string]string{}
		dir := filepath.Join(runDir, kind)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make run directory: %w", err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("read decisions: %w", err)
		}
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, fmt.Errorf("read decisions: %w", err)
			}
			m.set[kind][e.Name()] = string(content)
		}
	}
	return m, nil
}

func markName(k lb.EndpointKey) string {
	return fmt.Sprintf("%d_%s_%d_%d_%d", k.VNI, k.VIP, k.Protocol, k.Port, k.PortEnd)
}

// empty tells that no decision is marked.
func (m *marks) empty() bool {
	return len(m.set[failOpenMarks])+len(m.set[panicMarks])+len(m.set[backupMarks]) == 0
}

// read tells what is marked.
func (m *marks) read(k lb.EndpointKey) (out mark) {
	if m.empty() {
		return out
	}
	name := markName(k)
	_, out.Backup = m.set[backupMarks][name]
	alive, panics := m.set[panicMarks][name]
	out.Panic = panics
	// Written later, when there are both: the tables are as open before and after.
	if other, open := m.set[failOpenMarks][name]; open {
		out.FailOpen, alive = true, other
	}
	for _, word := range strings.Fields(alive) {
		if id, err := strconv.ParseUint(word, 10, 16); err == nil {
			out.alive = append(out.alive, uint16(id))
		}
	}
	return out
}

// write marks a decision. It is called before tables open and after they stopped to: a mark too many makes the
// next agent ask members again that are alive, one too few makes dead members look alive.
func (m *marks) write(k lb.EndpointKey, w mark) error {
	if w.Decision == (health.Decision{}) && m.empty() {
		return nil
	}
	var alive strings.Builder
	for _, id := range w.alive {
		fmt.Fprintln(&alive, id)
	}
	name := markName(k)
	return errors.Join(
		m.mark(panicMarks, name, w.Panic, alive.String()), m.mark(failOpenMarks, name, w.FailOpen, alive.String()), m.mark(backupMarks, name, w.Backup, ""))
}

func (m *marks) mark(kind, name string, on bool, content string) error {
	have, marked := m.set[kind][name]
	if marked == on && (!on || have == content) {
		return nil
	}
	path := filepath.Join(m.dir, kind, name)
	if on {
		m.set[kind][name] = content
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return fmt.Errorf("remember decision: %w", err)
		}
		return nil
	}
	delete(m.set[kind], name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget decision: %w", err)
	}
	return nil
}

// prune forgets what is marked of endpoints that wanted does not name.
func (m *marks) prune(wanted map[lb.EndpointKey]*group) error {
	if m.empty() {
		return nil
	}
	names := make(map[string]bool, len(wanted))
	for k := range wanted {
		names[markName(k)] = true
	}
	var errs []error
	for kind, set := range m.set {
		for name := range set {
			if !names[name] {
				errs = append(errs, m.mark(kind, name, false, ""))
			}
		}
	}
	return errors.Join(errs...)
}
