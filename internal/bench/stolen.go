package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// CPUTime is what /proc/stat tells of all CPUs since boot, in ticks (proc(5)).
type CPUTime struct {
	// Total is busy, idle and stolen time; Stolen is when a virtual machine had something to do and its hypervisor gave the CPU
	// to others.
	Total, Stolen uint64
}

// ReadCPUTime reads the present times. Where there are none they are zero.
func ReadCPUTime() CPUTime {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return CPUTime{}
	}
	return parseCPUTime(text)
}

// parseCPUTime reads the first line: "cpu", then user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice, of
// which the last two are in user and nice already.
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

// StolenSince is the share of the time since then that was stolen, from 0 to 1.
func (t CPUTime) StolenSince(then CPUTime) float64 {
	if t.Total <= then.Total || t.Stolen < then.Stolen {
		return 0
	}
	return float64(t.Stolen-then.Stolen) / float64(t.Total-then.Total)
}

// stolenWorthTelling is the share from which on figures in wall time say more of the neighbours than of Shunt.
const stolenWorthTelling = 0.05

// StolenText is a remark on figures that were taken while so much was stolen; empty when it does not matter.
func StolenText(share float64) string {
	if share < stolenWorthTelling {
		return ""
	}
	return fmt.Sprintf("the hypervisor gave %.0f %% of this machine's CPU time to others meanwhile", 100*share)
}
