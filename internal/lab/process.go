package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/netdev"
)

// labVariable is in the environment of every process of a lab. Together with the namespace it
// identifies a lab's processes, including those without a record.
const labVariable = "SHUNT_LAB"

// Process is the record of a process. Pid and Start together are never reused before the next boot.
type Process struct {
	Node string `json:"node"`
	// Name of the process within its node: "manager", "mux", "bgpd".
	Name string `json:"name"`
	Pid  int    `json:"pid"`
	// Start is in clock ticks since boot (proc_pid_stat(5), field 22).
	Start uint64 `json:"start"`
}

// command is a process to start.
type command struct {
	node Node
	name string
	path string
	args []string
	// urgent processes run before others, because a real router does not share its CPU with the
	// machines around it.
	urgent bool
}

// urgentNice is the nice value of urgent processes.
const urgentNice = -10

// start runs a command in its node's namespace with its output appended to the node's log, and
// records it.
func (l *Lab) start(c command) (Process, error) {
	dir := l.nodeDir(c.node.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Process{}, err
	}
	log, err := os.OpenFile(l.LogPath(c.node.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Process{}, fmt.Errorf("start %s on %s: %w", c.name, c.node.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(c.path, c.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = dir
	cmd.Env = l.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // outlives this command and its terminal
	begin := cmd.Start
	if c.urgent {
		begin = func() error { return startUrgent(cmd) }
	} else if have := unitCapabilities[c.args[0]]; len(have) > 0 {
		begin = func() error { return startBounded(cmd, have) }
	}
	if err := netdev.In(c.node.Namespace(l.Topology.Name), begin); err != nil {
		return Process{}, fmt.Errorf("start %s on %s: %w", c.name, c.node.Name, err)
	}
	p := Process{Node: c.node.Name, Name: c.name, Pid: cmd.Process.Pid}
	p.Start, _, err = procStat(p.Pid)
	go cmd.Wait() // reaps it while this command lives
	if err != nil {
		return Process{}, fmt.Errorf("start %s on %s: %w", c.name, c.node.Name, err)
	}
	b, err := json.Marshal(p)
	if err != nil {
		return Process{}, err
	}
	return p, writeFile(filepath.Join(dir, c.name+".pid"), b, 0o644)
}

// startUrgent starts a process with a temporarily lowered nice value of this thread, which all
// threads of the process inherit. The thread must be locked.
func startUrgent(cmd *exec.Cmd) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, urgentNice); err != nil {
		return fmt.Errorf("set nice value %d: %w", urgentNice, err)
	}
	err := cmd.Start()
	return errors.Join(err, unix.Setpriority(unix.PRIO_PROCESS, 0, 0))
}

// Processes lists the recorded processes, alive or not.
func (l *Lab) Processes() ([]Process, error) {
	paths, err := filepath.Glob(filepath.Join(Dir(l.Topology.Name), "*", "*.pid"))
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var p Process
		if json.Unmarshal(b, &p) == nil && p.Pid > 0 && p.Start > 0 {
			// Pid files of other programs do not belong to the lab.
			all = append(all, p)
		}
	}
	return all, nil
}

// Alive reports whether the recorded process still runs. A later process with the same pid does not
// count.
func (p Process) Alive() bool {
	start, status, err := procStat(p.Pid)
	return err == nil && start == p.Start && status != 'Z' && status != 'X'
}

// kill ends exactly this process and waits until it is gone.
func (p Process) kill(ctx context.Context, signal unix.Signal) error {
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill %s on %s: open pid %d: %w", p.Name, p.Node, p.Pid, err)
	}
	defer unix.Close(fd)
	if !p.Alive() { // the pid was reused, or the process is already dead
		return nil
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %s on %s: signal pid %d: %w", p.Name, p.Node, p.Pid, err)
	}
	for {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("kill %s on %s: wait for pid %d: %w", p.Name, p.Node, p.Pid, err)
		}
		if ready > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("kill %s on %s: pid %d still runs: %w", p.Name, p.Node, p.Pid, ctx.Err())
		}
	}
}

// killAll kills the recorded processes of the nodes and those in the nodes' namespaces with the
// lab's variable, until none is left. No process of a lab needs a clean end, because its data is
// removed too.
func (l *Lab) killAll(ctx context.Context, nodes []Node) error {
	for {
		left, unsure := l.present(nodes)
		if len(left) == 0 && !unsure {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("kill all processes of lab %s: %w", l.Topology.Name, err)
		}
		if len(left) == 0 {
			time.Sleep(time.Millisecond) // execve(2) takes less
		}
		errs := make(chan error, len(left))
		for _, p := range left {
			go func() { errs <- p.kill(ctx, unix.SIGKILL) }()
		}
		for range left {
			if err := <-errs; err != nil {
				return err
			}
		}
	}
}

// present finds the running processes of the nodes, except this one and its ancestors. It returns
// unsure if a process in one of their namespaces is in execve(2), because its environment can be
// read only afterwards.
func (l *Lab) present(nodes []Node) (alive []Process, unsure bool) {
	spare := ancestors()
	byID := map[netdev.NamespaceID]string{}
	wanted := map[string]bool{}
	for _, n := range nodes {
		wanted[n.Name] = true
		if id, err := netdev.IDOf(n.Namespace(l.Topology.Name)); err == nil {
			byID[id] = n.Name
		}
	}
	found := map[int]Process{}
	for _, pid := range pids() {
		id, err := netdev.IDOfProcess(pid)
		if err != nil || byID[id] == "" {
			continue
		}
		if !marked(pid, l.Topology.Name) {
			unsure = unsure || executing(pid)
			continue
		}
		if start, _, err := procStat(pid); err == nil {
			found[pid] = Process{Node: byID[id], Name: programName(pid), Pid: pid, Start: start}
		}
	}
	recorded, _ := l.Processes()
	for _, p := range recorded {
		if wanted[p.Node] {
			found[p.Pid] = p
		}
	}
	for pid, p := range found {
		if !spare[pid] && p.Alive() {
			alive = append(alive, p)
		}
	}
	sort.Slice(alive, func(i, j int) bool { return alive[i].Pid < alive[j].Pid })
	return alive, unsure
}

// unrecorded finds the running processes of the lab without a record: those that recorded ones
// started.
func (l *Lab) unrecorded(recorded []Process) []Process {
	known := map[int]bool{}
	for _, p := range recorded {
		known[p.Pid] = true
	}
	alive, _ := l.present(l.Topology.Nodes())
	return slices.DeleteFunc(alive, func(p Process) bool { return known[p.Pid] })
}

// programName returns the program that a process runs. For shunt it returns the subcommand.
func programName(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	argv := strings.Split(string(b), "\x00")
	if self, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && len(argv) > 1 && strings.HasPrefix(filepath.Base(self), "shunt") {
		return argv[1]
	}
	return filepath.Base(argv[0])
}

// marked reports whether the process was started by the named lab, or by one of its processes.
func marked(pid int, lab string) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for _, v := range strings.Split(string(env), "\x00") {
		if v == labVariable+"="+lab {
			return true
		}
	}
	return false
}

// executing reports whether a process is in execve(2), between the end of its previous program and
// the start of the next one. Its arguments and its environment are both empty then.
func executing(pid int) bool {
	for _, file := range []string{"environ", "cmdline"} {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file)); err != nil || len(b) > 0 {
			return false
		}
	}
	_, status, err := procStat(pid)
	return err == nil && status != 'Z' && status != 'X'
}

func pids() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// ancestors returns the pids of this process and its ancestors.
func ancestors() map[int]bool {
	set := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !set[pid]; {
		set[pid] = true
		stat, err := statFields(pid)
		if err != nil {
			break
		}
		pid, _ = strconv.Atoi(stat[1])
	}
	return set
}

// procStat reads a process's start time and status letter.
func procStat(pid int) (start uint64, status byte, err error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, 0, err
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// statFields returns the fields of /proc/PID/stat after the command's name, from field 3 (state)
// on.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The name is in parentheses and may contain any byte.
	text := string(b)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return nil, fmt.Errorf("read stat of pid %d: %d fields after the name, want 20 or more", pid, len(fields))
	}
	return fields, nil
}
