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
	// groupsName begins the name of the cgroup that has those of programs. The agent's process id
	// and a dash follow.
	groupsName = "shunt-checks-"
	// maxGroupProcesses bounds the processes and threads of a program, if the agent may use the
	// pids controller.
	maxGroupProcesses = 64
)

// groups is the parent cgroup in which each program gets a cgroup of its own (cgroups(7), version
// 2). Unlike a process group, a cgroup cannot be left with setsid.
type groups struct {
	path string

	mu   sync.Mutex
	made int
	// left are the cgroups that still had processes when they were to be removed.
	left []*group
}

// group is the cgroup of a program; nil: it has none.
type group struct {
	of   *groups
	path string
}

// openGroups creates the parent cgroup of all programs below the agent's; nil: the agent may use
// none on this machine.
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
	// If the agent's own cgroup does not delegate controllers, only the limits of setrlimit apply.
	for _, controller := range []string{"+pids", "+memory"} {
		_ = write(g.path, "cgroup.subtree_control", controller)
	}
	return g
}

// ownGroup returns the directory of the agent's cgroup of version 2.
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

// groupOf returns the directory of a cgroup, from the contents of a process's cgroup and mountinfo
// files (proc_pid_cgroup(5), proc_pid_mountinfo(5)).
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

// clearGroups removes the cgroups of agents that were killed, and kills the processes in them.
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
			_ = os.Remove(each) // the kernel's files in it cannot and need not be removed
		}
		_ = os.Remove(path)
	}
}

func write(group, file, text string) error {
	return os.WriteFile(filepath.Join(group, file), []byte(text), 0)
}

// make creates the cgroup of one program; nil: it gets none.
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

// sweep removes the cgroups that became empty.
func (g *groups) sweep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = slices.DeleteFunc(g.left, func(one *group) bool {
		err := os.Remove(one.path)
		return err == nil || os.IsNotExist(err)
	})
}

// close removes all cgroups. It waits up to 500 ms for killed processes to exit. The next agent
// removes those left then.
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

// open opens the directory, for a process to be started in it.
func (g *group) open() (*os.File, error) { return os.Open(g.path) }

// kill kills all processes in the group.
func (g *group) kill() {
	if g != nil {
		_ = write(g.path, "cgroup.kill", "1")
	}
}

// remove removes the group, or leaves it to sweep if it is not empty yet.
func (g *group) remove() {
	if g == nil || os.Remove(g.path) == nil {
		return
	}
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	g.of.left = append(g.of.left, g)
}
