package load

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Ticks is the processor time of a machine since its start, in any unit.
type Ticks struct{ Busy, All uint64 }

// ParseTicks reads the first line of /proc/stat (proc_stat(5)). I/O wait counts as idle; time
// stolen by other guests of the hypervisor counts as busy.
func ParseTicks(r io.Reader) (Ticks, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return Ticks{}, err
	}
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != "cpu" {
		return Ticks{}, fmt.Errorf("line %q: must be cpu and its times", strings.TrimSpace(line))
	}
	// user nice system idle iowait irq softirq steal; guest times are in user and nice.
	var out Ticks
	for i, f := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return Ticks{}, fmt.Errorf("line %q: %q is no time", strings.TrimSpace(line), f)
		}
		out.All += n
		if i != 3 && i != 4 {
			out.Busy += n
		}
	}
	return out, nil
}

// cpuWindow is the period of a CPU's share, or the time between two samples if that is longer,
// because the kernel counts hundredths of seconds, too coarse for SampleEvery.
const cpuWindow = time.Second

// CPU computes the share of the processors that was busy within the last second.
type CPU struct {
	// Every is the time between two samples; 0 for SampleEvery.
	Every   time.Duration
	samples []Ticks // the newest last
}

// Sampled adds a sample and returns the share in thousandths; false: it is the first sample, or the
// clock did not advance.
func (c *CPU) Sampled(t Ticks) (uint16, bool) {
	c.samples = append(c.samples, t)
	if most := max(int(cpuWindow/cmp.Or(c.Every, SampleEvery)), 1) + 1; len(c.samples) > most {
		c.samples = c.samples[len(c.samples)-most:]
	}
	first := c.samples[0]
	all, busy := t.All-first.All, t.Busy-first.Busy
	if len(c.samples) < 2 || t.All <= first.All || t.Busy < first.Busy {
		return 0, false
	}
	return uint16(min((busy*FullCPU+all/2)/all, FullCPU)), true
}
