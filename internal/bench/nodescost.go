package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// peakRSS returns the manager's peak resident memory.
func (r *nodesRig) peakRSS() (uint64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.manager.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kb, err := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(value), []byte("kB")))), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("VmHWM: is missing")
}

// cpuSeconds is the CPU time of both processes of a rig.
type cpuSeconds struct{ manager, swarm float64 }

// fields returns the figures of a row.
func (c cpuSeconds) fields() []Field {
	return []Field{{"manager_cpu_s", round(c.manager)}, {"swarm_cpu_s", round(c.swarm)}}
}

// cpu returns the CPU time of the running processes since they began.
func (r *nodesRig) cpu() (c cpuSeconds, err error) {
	if c.manager, err = cpuOf(r.manager.Process.Pid); err == nil {
		c.swarm, err = cpuOf(r.swarm.Process.Pid)
	}
	return c, err
}

func (r *nodesRig) cpuSince(before cpuSeconds) (cpuSeconds, error) {
	now, err := r.cpu()
	return cpuSeconds{now.manager - before.manager, now.swarm - before.swarm}, err
}

// ticksPerSecond is the unit of CPU times in /proc (proc(5)): USER_HZ, 100 on every architecture
// that Go supports.
const ticksPerSecond = 100

// cpuOf returns the user and system time of a process and all its threads.
func cpuOf(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(content))
}

// parseCPU reads utime and stime, fields 14 and 15. Field 2, the name, may hold spaces and
// brackets.
func parseCPU(stat string) (float64, error) {
	_, rest, ok := cutLast(stat, ")")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("stat: %q: must have at least 15 fields", stat)
	}
	var sum uint64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("stat: %w", err)
		}
		sum += n
	}
	return float64(sum) / ticksPerSecond, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
