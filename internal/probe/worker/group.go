package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// groupsName begins the name of the cgroup that has those of programs; the agent's process number and a dash follow.
	groupsName = "shunt-checks-"
	// maxGroupProcesses bounds processes and threads of a program, where the machine lets the agent bound them.
	maxGroupProcesses = 64
)

// groups is where each program gets a cgroup of its own (cgroups(7), version 2), which nobody leaves by a session of his own.
type groups struct {
	path string

	mu   sync.Mutex
	made int
	// left are those that somebody was still in when they were to go.
	left []*group
}

// group is the cgroup of a program; nil: it has none.
type group struct {
	of   *groups
	path string
}

// openGroups makes the cgroup of all programs below the agent's; nil: this machine has none that the agent may use.
func openGroups() *groups {
	own, err := ownGroup()
	if err != nil {
		return nil
	}
	clearGroups(own)
	path, err := os.MkdirTemp(own, groupsName+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return nil
	}
	g := &groups{path: path}
	if _, err := os.Stat(filepath.Join(g.path, "cgroup.kill")); err != nil { // Linux 5.14
		_ = os.Remove(g.path)
		return nil
	}
	// Where the agent's own cgroup hands no controllers down, limits are those of setrlimit alone.
	for _, controller := range []string{"+pids", "+memory"} {
		_ = write(g.path, "cgroup.subtree_control", controller)
	}
	return g
}

// ownGroup is the directory of the agent's cgroup of version 2.
func ownGroup() (string, error) {
	member, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	return groupOf(string(member), string(mounts))
}

// groupOf is the directory of a cgroup by what proc says of a process (proc_pid_cgroup(5), proc_pid_mountinfo(5)).
func groupOf(member, mounts string) (string, error) {
	own := ""
	for line := range strings.Lines(member) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = path
		}
	}
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if own == "" || dash < 5 || dash+1 >= len(fields) || fields[dash+1] != "cgroup2" {
			continue
		}
		root, at := fields[3], fields[4]
		if below, err := filepath.Rel(root, own); err == nil && below != ".." && !strings.HasPrefix(below, "../") {
			return filepath.Join(at, below), nil
		}
	}
	return "", fmt.Errorf("no cgroup of version 2: %w", os.ErrNotExist)
}

// clearGroups ends what agents that were killed left behind.
func clearGroups(own string) {
	all, _ := filepath.Glob(filepath.Join(own, groupsName+"*"))
	for _, path := range all {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), groupsName), "-")
		if _, err := os.Stat("/proc/" + pid); err == nil {
			continue
		}
		_ = write(path, "cgroup.kill", "1")
		below, _ := filepath.Glob(filepath.Join(path, "*/"))
		for _, each := range below {
			_ = os.Remove(each) // files of the kernel cannot be removed
		}
		_ = os.Remove(path)
	}
}

func write(group, file, text string) error {
	return os.WriteFile(filepath.Join(group, file), []byte(text), 0)
}

// make makes the cgroup of one program; nil: it gets none.
func (g *groups) make() *group {
	if g == nil {
		return nil
	}
	g.sweep()
	g.mu.Lock()
	g.made++
	one := &group{of: g, path: filepath.Join(g.path, strconv.Itoa(g.made))}
	g.mu.Unlock()
	if os.Mkdir(one.path, 0o755) != nil {
		return nil
	}
	_ = write(one.path, "pids.max", strconv.Itoa(maxGroupProcesses))
	_ = write(one.path, "memory.max", strconv.Itoa(maxProgramMemory))
	return one
}

// sweep removes those that nobody is in any more.
func (g *groups) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = slices.DeleteFunc(g.left, func(one *group) bool {
		err := os.Remove(one.path)
		return err == nil || os.IsNotExist(err)
	})
}

// close removes what there is, and waits a moment for those that were killed to go; the next agent removes what is left then.
func (g *groups) close() {
	if g == nil {
		return
	}
	for range 100 {
		g.sweep()
		if os.Remove(g.path) == nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// open is the directory, for a process to be born in.
func (g *group) open() (*os.File, error) { return os.Open(g.path) }

// kill ends all processes in the group.
func (g *group) kill() {
	if g != nil {
		_ = write(g.path, "cgroup.kill", "1")
	}
}

// remove gives the group up; it goes once it is empty.
func (g *group) remove() {
	if g == nil || os.Remove(g.path) == nil {
		return
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	g.of.left = append(g.of.left, g)
}
