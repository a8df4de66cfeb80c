package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// CPUTime holds the times of all CPUs since boot from /proc/stat, in ticks (proc(5)).
type CPUTime struct {
	// Total is busy, idle and stolen time. Stolen is the time in which a virtual machine was
	// runnable and its hypervisor gave the CPU to others.
	Total, Stolen uint64
}

// ReadCPUTime reads the current times, or zeros if they cannot be read.
func ReadCPUTime() CPUTime {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPUTime{}
	}
	return parseCPUTime(text)
}

// parseCPUTime reads the first line: "cpu", then user, nice, system, idle, iowait, irq, softirq,
// steal, guest, guest_nice. The last two are already part of user and nice.
func parseCPUTime(stat []byte) (t CPUTime) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return CPUTime{}
	}
	for i, f := range fields[1:9] {
		ticks, err := strconv.ParseUint(string(f), 10, 64)
		if err != nil {
			return CPUTime{}
		}
		t.Total += ticks
		if i == 7 {
			t.Stolen = ticks
		}
	}
	return t
}

// StolenSince returns the share of the time since then that was stolen, from 0 to 1.
func (t CPUTime) StolenSince(then CPUTime) float64 {
	if t.Total <= then.Total || t.Stolen < then.Stolen {
		return 0
	}
	return float64(t.Stolen-then.Stolen) / float64(t.Total-then.Total)
}

// stolenWorthTelling is the share above which figures in wall time depend more on other machines
// than on Shunt.
const stolenWorthTelling = 0.05

// StolenText returns a remark on figures taken while this share was stolen, or "" if it is too
// small to matter.
func StolenText(share float64) string {
	if share < stolenWorthTelling {
		return ""
	}
	return fmt.Sprintf("the hypervisor gave %.0f %% of this machine's CPU time to others meanwhile", 100*share)
}
